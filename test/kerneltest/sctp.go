// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// SCTPSockets is sockets of protocol SCTP, in both styles and both address families. It
// needs CONFIG_IP_SCTP (Linux 2.6) and, for the second family, CONFIG_IPV6. Passing
// SCTP on and tracking it needs neither.
var SCTPSockets = define("SCTP sockets", probeSCTPSockets)

func probeSCTPSockets() error {
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		for _, style := range []int{unix.SOCK_STREAM, unix.SOCK_SEQPACKET} {
			fd, err := unix.Socket(family, style|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
			if err != nil {
				return fmt.Errorf("socket: %w", err)
			}
			unix.Close(fd)
		}
	}
	return nil
}
