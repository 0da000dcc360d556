// SPDX-License-Identifier: Apache-2.0

package lab

// Protocol is a transport protocol of Services.
type Protocol int

// The protocols that Kubernetes Services know.
const (
	TCP Protocol = iota
	UDP
	SCTP // one-to-one sockets, for which the kernel needs CONFIG_IP_SCTP
)

// String returns the name as Kubernetes writes it: "TCP", "UDP" or "SCTP".
func (p Protocol) String() string {
	if p < TCP || p > SCTP {
		return "unknown protocol"
	}
	return [...]string{"TCP", "UDP", "SCTP"}[p]
}
