// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Flow is an offloaded connection.
type Flow struct {
	Protocol    desired.Protocol
	Source      netip.AddrPort // the client
	Destination netip.AddrPort // what it connected to
	Backend     netip.AddrPort // who answers: Destination itself, where there was no DNAT

	// Sent is from the client, Received is what came back.
	Sent, Received Count

	// Began is when the connection began; zero where the kernel does not know.
	Began time.Time

	// Hardware says that network hardware forwards it.
	Hardware bool
}

// Count is how much was sent in one direction, as far as conntrack has seen.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // from the IP header on
}

func (c *Count) add(o Count) {
	c.Packets += o.Packets
	c.Bytes += o.Bytes
}

// Frontend is what the client connected to.
func (f *Flow) Frontend() desired.FrontendKey {
	return desired.FrontendKey{AddrPort: f.Destination, Protocol: f.Protocol}
}

// Bytes are those of both directions.
func (f *Flow) Bytes() uint64 { return f.Sent.Bytes + f.Received.Bytes }

// Compare orders flows by what they were made to, and then by who made them.
func (f *Flow) Compare(o *Flow) int {
	return cmp.Or(
		f.Destination.Compare(o.Destination), cmp.Compare(f.Protocol, o.Protocol),
		f.Backend.Compare(o.Backend), f.Source.Compare(o.Source),
	)
}
