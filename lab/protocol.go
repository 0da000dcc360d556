// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Protocol is a transport protocol of Services.
type Protocol int

// The protocols that Kubernetes Services know.
const (
	TCP Protocol = iota
	UDP
	SCTP // one-to-one sockets; see SCTPAvailable
)

// String returns the name as Kubernetes writes it: "TCP", "UDP" or "SCTP".
func (p Protocol) String() string {
	switch p {
	case TCP:
		return "TCP"
	case UDP:
		return "UDP"
	case SCTP:
		return "SCTP"
	}
	return "unknown protocol"
}

// SCTPAvailable tells whether the kernel has SCTP sockets (CONFIG_IP_SCTP); it
// opens one to find out, and so may load the kernel's module.
func SCTPAvailable() bool { return sctpAvailable() }

var sctpAvailable = sync.OnceValue(func() bool {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return false
	}
	unix.Close(fd)
	return true
})
