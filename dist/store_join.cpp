// store_join.cpp: how a connection becomes a rank: it proves that it knows the token, then it joins. See store.h.
#include <algorithm>

#include "dist/store.h"

namespace lockstep::dist {

void Store::handle_stranger(Connection& connection, const Frame& frame) {
  if (frame.kind != FrameKind::hello)
    throw DistError(Fault::protocol, -1, "expected the greeting of a rank; use one build on all ranks");
  BodyReader in(frame.body);
  const uint32_t protocol = in.u32();
  const Nonce number = in.bytes<32>();
  const Proof proof = in.bytes<32>();
  in.end();
  if (protocol != wire_protocol)
    return refuse(connection, str("the store speaks protocol ", wire_protocol, ", you speak ", protocol,
                                  ": all ranks need the same build"));
  if (!same_proof(proof, prove(place_.token, "rank", connection.challenge, number, "control"))) {
    log(str("refused a connection from ", connection.peer.host(), ": it does not know the token of job '", place_.job,
            "'; if it is a rank, set LOCKSTEP_TOKEN there"));
    return refuse(connection, place_.token.empty()
                                  ? "this job has no token, you have one: unset LOCKSTEP_TOKEN, or set it on all ranks"
                                  : "wrong token: LOCKSTEP_TOKEN must be the same secret on all ranks of a job; "
                                    "perhaps another job listens on this port");
  }
  connection.state = State::proved;
  connection.in.set_limit(body_limit);
  const Proof ours = prove(place_.token, "store", connection.challenge, number, "control");
  send(connection, FrameKind::welcome, 0, Writer().bytes(ours.data(), ours.size()).body);
}

void Store::handle_join(Connection& connection, const Frame& frame) {
  if (frame.kind != FrameKind::join)
    throw DistError(Fault::protocol, -1, "expected the description of a rank; use one build on all ranks");
  BodyReader in(frame.body);
  Member member;
  member.rank = int(in.u32());
  member.world_size = int(in.u32());
  member.pid = in.u32();
  member.incarnation = in.u64();
  member.host = in.text(256);
  member.job = in.text(key_limit);
  const double seconds_left = in.seconds();
  member.identity = in.text(value_limit);
  in.end();
  if (failure_) {
    Writer out;
    write_failure(out, failure_->fault, failure_->rank, failure_->what());
    send(connection, FrameKind::failure, 0, out.body);
    connection.state = State::closing;
    return;
  }
  if (const auto why = rank_table_.objection(host_, member)) {
    const bool of_this_job = member.job == host_.job;
    const bool taken = of_this_job && member.world_size == host_.world_size && member.rank >= 0 &&
                       member.rank < host_.world_size && member.identity == host_.identity;
    log(str("refused a rank: ", *why));
    refuse(connection, *why, taken || begun_);
    // A rank of this job with different settings means that the job cannot start. A duplicate rank is only turned away.
    if (of_this_job && !taken && !begun_)
      fail({Fault::refused, member.rank >= 0 && member.rank < host_.world_size ? member.rank : -1,
            "[rendezvous] " + *why});
    return;
  }
  if (begun_)
    return refuse(
        connection,
        str("rank ", member.rank,
            " has joined before and lost its connection: a rank cannot join a job twice; start all ranks again"),
        true);
  // The rank connected again before the store noticed that the rank's earlier connection broke.
  for (Connection& other : connections_) {
    if (&other == &connection || other.rank != member.rank) continue;
    other.rank = -1;
    other.dead = true;
  }
  rank_table_.sit(member, attended_);
  connection.state = State::seated;
  connection.rank = member.rank;
  const auto give_up = Clock::now() + std::chrono::duration_cast<Clock::duration>(Seconds(std::min(seconds_left, 1e8)));
  if (give_up < rendezvous_deadline_) {
    rendezvous_deadline_ = give_up;
    rendezvous_waited_ = Seconds(seconds_left);
  }
  if (!rank_table_.complete()) return;
  begun_ = true;
  rank_table_.begin(attended_);
  for (Connection& other : connections_) {
    if (other.state != State::seated || other.dead) continue;
    send(other, FrameKind::joined, 0, Writer().seconds(place_.heartbeat.count()).u32(host_.pid).text(host_.host).body);
  }
}

}  // namespace lockstep::dist
