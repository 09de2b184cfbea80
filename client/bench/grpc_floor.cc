// SPDX-License-Identifier: Apache-2.0
#include "client/bench/grpc_floor.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <memory>
#include <stdexcept>
#include <vector>

#include "client/bench/grpc_floor.grpc.pb.h"
#include "client/bench/samples.h"
#include "client/playground/worker.h"

namespace gpulease::bench {
namespace {

class EmptyService final : public floor::Floor::Service {
  grpc::Status Call(grpc::ServerContext*, const floor::Nothing*, floor::Nothing*) override {
    return grpc::Status::OK;
  }
};

}  // namespace

int RunGrpcServer(const std::string& socket_path) {
  EmptyService service;
  std::unique_ptr<grpc::Server> server;
  playground::Leader leader;
  const int exit_code = leader.Serve([&](const std::vector<std::string>&) -> std::string {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("unix:" + socket_path, grpc::InsecureServerCredentials());
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    if (!server) throw std::runtime_error("gRPC cannot serve " + socket_path);
    return "ok";
  });
  if (server) server->Shutdown(std::chrono::system_clock::now());
  return exit_code;
}

int RunGrpcClient(const std::string& socket_path) {
  std::unique_ptr<floor::Floor::Stub> stub;
  playground::Leader leader;
  return leader.Serve([&](const std::vector<std::string>& words) {
    if (!stub) {
      stub = floor::Floor::NewStub(
          grpc::CreateChannel("unix:" + socket_path, grpc::InsecureChannelCredentials()));
    }
    const int calls = std::stoi(words.at(1));
    std::string text;
    for (int i = 0; i < calls; ++i) {
      grpc::ClientContext context;
      floor::Nothing request;
      floor::Nothing response;
      const Stopwatch watch;
      const grpc::Status status = stub->Call(&context, request, &response);
      text += std::to_string(watch.micros()) + " ";
      if (!status.ok()) throw std::runtime_error("gRPC: " + status.error_message());
    }
    return text;
  });
}

}  // namespace gpulease::bench
