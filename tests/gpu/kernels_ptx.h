// SPDX-License-Identifier: Apache-2.0
//
// kernels.cu as PTX, for any GPU of compute capability 7.0 or later.
#pragma once

namespace gpulease::gpu_test {

inline constexpr char kKernels[] = R"ptx(
.version 7.0
.target sm_70
.address_size 64
 // .globl Fill
.visible .entry Fill(
 .param .u64 Fill_param_0,
 .param .u64 Fill_param_1,
 .param .u32 Fill_param_2
)
{
 .reg .pred  %p<3>;
 .reg .b32  %r<14>;
 .reg .b64  %rd<16>;
 ld.param.u64  %rd7, [Fill_param_0];
 ld.param.u64  %rd8, [Fill_param_1];
 ld.param.u32  %r1, [Fill_param_2];
 mov.u32  %r2, %ntid.x;
 cvt.u64.u32  %rd1, %r2;
 mov.u32  %r3, %ctaid.x;
 mul.wide.u32  %rd9, %r3, %r2;
 mov.u32  %r4, %tid.x;
 cvt.u64.u32  %rd10, %r4;
 add.s64  %rd15, %rd9, %rd10;
 setp.ge.u64  %p1, %rd15, %rd8;
 @%p1 bra  $L__BB0_3;
 mov.u32  %r5, %nctaid.x;
 cvt.u64.u32  %rd11, %r5;
 mul.lo.s64  %rd3, %rd11, %rd1;
 cvta.to.global.u64  %rd4, %rd7;
$L__BB0_2:
 cvt.u32.u64  %r6, %rd15;
 mul.lo.s32  %r7, %r6, -1640531535;
 shr.u64  %rd12, %rd15, 32;
 cvt.u32.u64  %r8, %rd12;
 xor.b32   %r9, %r8, %r1;
 xor.b32   %r10, %r9, %r7;
 shr.u32  %r11, %r10, 15;
 xor.b32   %r12, %r11, %r10;
 mul.lo.s32  %r13, %r12, -2048144777;
 shl.b64  %rd13, %rd15, 2;
 add.s64  %rd14, %rd4, %rd13;
 st.global.u32  [%rd14], %r13;
 add.s64  %rd15, %rd15, %rd3;
 setp.lt.u64  %p2, %rd15, %rd8;
 @%p2 bra  $L__BB0_2;
$L__BB0_3:
 ret;
}
 // .globl Check
.visible .entry Check(
 .param .u64 Check_param_0,
 .param .u64 Check_param_1,
 .param .u32 Check_param_2,
 .param .u64 Check_param_3
)
{
 .reg .pred  %p<5>;
 .reg .b32  %r<15>;
 .reg .b64  %rd<27>;
 ld.param.u64  %rd10, [Check_param_0];
 ld.param.u64  %rd11, [Check_param_1];
 ld.param.u32  %r1, [Check_param_2];
 ld.param.u64  %rd12, [Check_param_3];
 mov.u32  %r2, %ntid.x;
 cvt.u64.u32  %rd1, %r2;
 mov.u32  %r3, %ctaid.x;
 mul.wide.u32  %rd14, %r3, %r2;
 mov.u32  %r4, %tid.x;
 cvt.u64.u32  %rd15, %r4;
 add.s64  %rd24, %rd14, %rd15;
 setp.ge.u64  %p1, %rd24, %rd11;
 mov.u64  %rd26, 0;
 @%p1 bra  $L__BB1_3;
 mov.u32  %r5, %nctaid.x;
 cvt.u64.u32  %rd17, %r5;
 mul.lo.s64  %rd3, %rd17, %rd1;
 cvta.to.global.u64  %rd4, %rd10;
 mov.u64  %rd26, 0;
$L__BB1_2:
 cvt.u32.u64  %r6, %rd24;
 mul.lo.s32  %r7, %r6, -1640531535;
 shr.u64  %rd18, %rd24, 32;
 cvt.u32.u64  %r8, %rd18;
 xor.b32   %r9, %r8, %r1;
 xor.b32   %r10, %r9, %r7;
 shr.u32  %r11, %r10, 15;
 xor.b32   %r12, %r11, %r10;
 mul.lo.s32  %r13, %r12, -2048144777;
 shl.b64  %rd19, %rd24, 2;
 add.s64  %rd20, %rd4, %rd19;
 ld.global.u32  %r14, [%rd20];
 setp.ne.s32  %p2, %r14, %r13;
 selp.u64  %rd21, 1, 0, %p2;
 add.s64  %rd26, %rd26, %rd21;
 add.s64  %rd24, %rd24, %rd3;
 setp.lt.u64  %p3, %rd24, %rd11;
 @%p3 bra  $L__BB1_2;
$L__BB1_3:
 setp.eq.s64  %p4, %rd26, 0;
 @%p4 bra  $L__BB1_5;
 cvta.to.global.u64  %rd22, %rd12;
 atom.global.add.u64  %rd23, [%rd22], %rd26;
$L__BB1_5:
 ret;
}
 // .globl CheckZero
.visible .entry CheckZero(
 .param .u64 CheckZero_param_0,
 .param .u64 CheckZero_param_1,
 .param .u64 CheckZero_param_2
)
{
 .reg .pred  %p<5>;
 .reg .b32  %r<6>;
 .reg .b64  %rd<26>;
 ld.param.u64  %rd10, [CheckZero_param_0];
 ld.param.u64  %rd11, [CheckZero_param_1];
 ld.param.u64  %rd12, [CheckZero_param_2];
 mov.u32  %r1, %ntid.x;
 cvt.u64.u32  %rd1, %r1;
 mov.u32  %r2, %ctaid.x;
 mul.wide.u32  %rd14, %r2, %r1;
 mov.u32  %r3, %tid.x;
 cvt.u64.u32  %rd15, %r3;
 add.s64  %rd23, %rd14, %rd15;
 setp.ge.u64  %p1, %rd23, %rd11;
 mov.u64  %rd25, 0;
 @%p1 bra  $L__BB2_3;
 mov.u32  %r4, %nctaid.x;
 cvt.u64.u32  %rd17, %r4;
 mul.lo.s64  %rd3, %rd17, %rd1;
 cvta.to.global.u64  %rd4, %rd10;
 mov.u64  %rd25, 0;
$L__BB2_2:
 shl.b64  %rd18, %rd23, 2;
 add.s64  %rd19, %rd4, %rd18;
 ld.global.u32  %r5, [%rd19];
 setp.ne.s32  %p2, %r5, 0;
 selp.u64  %rd20, 1, 0, %p2;
 add.s64  %rd25, %rd25, %rd20;
 add.s64  %rd23, %rd23, %rd3;
 setp.lt.u64  %p3, %rd23, %rd11;
 @%p3 bra  $L__BB2_2;
$L__BB2_3:
 setp.eq.s64  %p4, %rd25, 0;
 @%p4 bra  $L__BB2_5;
 cvta.to.global.u64  %rd21, %rd12;
 atom.global.add.u64  %rd22, [%rd21], %rd25;
$L__BB2_5:
 ret;
}
 // .globl Scribble
.visible .entry Scribble(
 .param .u64 Scribble_param_0,
 .param .u64 Scribble_param_1,
 .param .u32 Scribble_param_2,
 .param .u64 Scribble_param_3
)
{
 .reg .pred  %p<4>;
 .reg .b32  %r<6>;
 .reg .b64  %rd<18>;
 ld.param.u64  %rd10, [Scribble_param_0];
 ld.param.u64  %rd7, [Scribble_param_1];
 ld.param.u32  %r1, [Scribble_param_2];
 ld.param.u64  %rd8, [Scribble_param_3];
 cvta.to.global.u64  %rd1, %rd10;
 // begin inline asm
 mov.u64 %rd9, %globaltimer;
 // end inline asm
 mov.u32  %r2, %nctaid.x;
 mov.u32  %r3, %ntid.x;
 mul.wide.u32  %rd3, %r2, %r3;
 mov.u32  %r4, %ctaid.x;
 mul.wide.u32  %rd11, %r4, %r3;
 mov.u32  %r5, %tid.x;
 cvt.u64.u32  %rd12, %r5;
 add.s64  %rd4, %rd11, %rd12;
$L__BB3_1:
 setp.ge.u64  %p1, %rd4, %rd7;
 @%p1 bra  $L__BB3_4;
 mov.u64  %rd17, %rd4;
$L__BB3_3:
 shl.b64  %rd13, %rd17, 2;
 add.s64  %rd14, %rd1, %rd13;
 st.volatile.global.u32  [%rd14], %r1;
 add.s64  %rd17, %rd17, %rd3;
 setp.lt.u64  %p2, %rd17, %rd7;
 @%p2 bra  $L__BB3_3;
$L__BB3_4:
 // begin inline asm
 mov.u64 %rd15, %globaltimer;
 // end inline asm
 sub.s64  %rd16, %rd15, %rd9;
 setp.lt.u64  %p3, %rd16, %rd8;
 @%p3 bra  $L__BB3_1;
 ret;
}
)ptx";

}  // namespace gpulease::gpu_test
