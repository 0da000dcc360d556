// SPDX-License-Identifier: Apache-2.0

// Package uml boots a User Mode Linux kernel, an ordinary Linux program, and runs one
// command on it.
//
// The machine's root is the host's file system (hostfs): a test binary built on the host
// runs there unchanged, and files that it writes stay on the host. The machine has its own
// processes, network and mounts: what the command does to network namespaces, rules or
// sysctls does not affect the host.
//
// Process 1 of the machine is the binary that booted it: a program that uses this package
// calls [Init] first in main or TestMain. On the host Init does nothing; as process 1 it
// mounts file systems, runs the command, records how it ended and powers off.
package uml
