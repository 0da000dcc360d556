// SPDX-License-Identifier: Apache-2.0

// Package uml boots a User Mode Linux kernel, an ordinary Linux program, and runs one
// command on it.
//
// The machine has the host's file system as its root (hostfs), so that a test binary
// built on the host runs on it as it is and what it writes to its files is there on
// the host afterwards. It has a process, network and mount world of its own: nothing
// that the command does to network namespaces, rules or sysctls touches the host.
//
// Its first process is the very binary that booted it: a program that uses this
// package calls [Init] as the first thing in main (or TestMain). On the host that does
// nothing; as process 1 of a machine it mounts what is needed, runs the command,
// records how it ended and powers off.
package uml
