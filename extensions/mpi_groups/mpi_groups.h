#pragma once
// Process groups over MPI, for CPU clusters whose network is best supported by MPI: #include <lockstep/mpi_groups.h>.
// The control plane (heartbeats, failures, flight records) is Lockstep's own; MPI carries headers and data.
namespace lockstep::dist {

/// Adds backend mpi. Programs that link lockstep_mpi_groups call use_mpi() before init(). Then init() under mpirun uses
/// MPI, unless MASTER_ADDR is set (as by `lockstep run`). MPI also distributes the address of rank 0's store.
void use_mpi();

}  // namespace lockstep::dist
