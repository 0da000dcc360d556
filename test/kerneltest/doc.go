// SPDX-License-Identifier: Apache-2.0

// Package kerneltest lets tests say what they need from the kernel and the machine
// that they run on.
//
// A test that needs something begins with
//
//	kerneltest.Require(t, kerneltest.NFTables, kerneltest.SCTPSockets)
//
// and is skipped, with a message that test/runner understands, where one of them is
// missing. Features are probed by using them, never derived from a version number:
// what a kernel can do depends on how it was built as much as on its age.
//
// Importing this package from tests also marks them as kernel tests: test/runner runs
// them on the host's kernel and on the User Mode Linux kernels, all others on the host
// alone.
package kerneltest
