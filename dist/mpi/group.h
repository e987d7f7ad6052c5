#pragma once
// Process groups over MPI, for clusters of CPUs whose network MPI knows best. The control plane (heartbeats, failures,
// flight records) is our own; MPI carries headers and data.
namespace lockstep::dist {

/// Makes backend mpi known to init(): programs that link lockstep_mpi call it first. Then init() under mpirun (without
/// MASTER_ADDR, which launchers of our own set) takes MPI, and rank 0's store is told to the others through MPI.
void use_mpi();

}  // namespace lockstep::dist
