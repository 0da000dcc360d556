// SPDX-License-Identifier: Apache-2.0

package lab

// Protocol is a transport protocol, by the name that Kubernetes gives it.
type Protocol string

// The protocols of Services.
const (
	TCP  Protocol = "TCP"
	UDP  Protocol = "UDP"
	SCTP Protocol = "SCTP" // one-to-one sockets, for which the kernel needs CONFIG_IP_SCTP
)
