#pragma once

#include <memory>

#include "server/handlers/handler_table.h"

namespace torch_remote::server {

struct SessionState;

// Makes the handler of one family of messages, which adds its functions to the table. Each is in
// the file of its name: make_read_handler() in read_handler.cpp.
using MakeHandler = std::unique_ptr<Handler>(SessionState& session, HandlerTable& table);

MakeHandler make_call_handler;       // SIGNATURE, CALL, QUERY kCall and kCheckedCall
MakeHandler make_context_handler;    // CONTEXT, THREAD, GO_ON, QUERY kContext
MakeHandler make_generator_handler;  // GENERATOR, QUERY kGenerator
MakeHandler make_storage_handler;    // RESIZE, FREE
MakeHandler make_program_handler;    // PROGRAM, RUN, DROP
MakeHandler make_upload_handler;     // BEGIN, QUERY kCachedUploads and kCachedUpload
MakeHandler make_file_handler;       // FILL, CLOSE_FILE, QUERY kFile
MakeHandler make_read_handler;       // READ
MakeHandler make_stream_handler;     // STREAM, QUERY kStream, kEvent, kElapsed and kBarrier
MakeHandler make_link_handler;       // QUERY kPeer
MakeHandler make_group_handler;      // QUERY kGroup
MakeHandler make_operator_handler;   // QUERY kOperators and kOperator
MakeHandler make_figure_handler;     // QUERY kCounters, kMemory, kTelemetry and kProfile

// All of them. A new family is a new file and its name here.
inline constexpr MakeHandler* kMakeHandlers[] = {
    make_call_handler,   make_context_handler,  make_generator_handler, make_storage_handler,
    make_upload_handler, make_read_handler,     make_stream_handler,    make_link_handler,
    make_group_handler,  make_operator_handler, make_figure_handler,    make_program_handler,
    make_file_handler,
};

}  // namespace torch_remote::server
