// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// DefaultRefresh is how often all connections pass the slow path once. The kernel
// gives the conntrack entry of a connection a day when it is offloaded, and little
// more while it is; what is left of that is how long it may be idle then.
const DefaultRefresh = time.Hour

// Scope is which connections are offloaded.
type Scope uint8

// The scopes.
const (
	// Services are connections whose original destination is a frontend of a
	// Service.
	Services Scope = iota
	// All is every connection that the node forwards.
	All
)

// String is "services" or "all".
func (s Scope) String() string {
	if s == All {
		return "all"
	}
	return "services"
}

// ParseScope is the inverse of String.
func ParseScope(s string) (Scope, error) {
	for _, scope := range []Scope{Services, All} {
		if s == scope.String() {
			return scope, nil
		}
	}
	return 0, fmt.Errorf("scope %q: is neither %v nor %v", s, Services, All)
}

// Hardware is whether flows are to be handed to network hardware.
type Hardware uint8

// The choices for hardware.
const (
	// Auto uses hardware when the drivers of all interfaces can, and says
	// nothing when they cannot.
	Auto Hardware = iota
	// On is like Auto, but complains.
	On
	// Off does not ask.
	Off
)

// String is "auto", "on" or "off".
func (h Hardware) String() string {
	switch h {
	case On:
		return "on"
	case Off:
		return "off"
	}
	return "auto"
}

// ParseHardware is the inverse of String.
func ParseHardware(s string) (Hardware, error) {
	for _, h := range []Hardware{Auto, On, Off} {
		if s == h.String() {
			return h, nil
		}
	}
	return 0, fmt.Errorf("hardware offload %q: is none of %v, %v and %v", s, Auto, On, Off)
}

// Config is what a Controller has to know. The zero value is off.
type Config struct {
	// NetNS is a file descriptor of the network namespace; 0 is the calling
	// thread's.
	NetNS int

	// Threshold is how many packets, of both directions together, a
	// connection has to have carried before it is offloaded. 0 is none ever:
	// the Controller removes what an earlier one has left, and does nothing
	// else.
	Threshold uint32

	// Commits, if not nil, counts the transactions of the dataplane and the Controller
	// in the namespace, so that neither takes the other's for those of another program.
	Commits *nfnl.Commits

	Scope    Scope
	Hardware Hardware

	// Interfaces takes part; nil is iface.Default. Only connections between
	// two of these interfaces are offloaded.
	Interfaces *iface.Selector

	// Refresh is how often all connections pass the slow path once, see
	// [DefaultRefresh]; 0 is the default, and less is never.
	Refresh time.Duration

	// NoHardware is told why hardware does not take flows although Hardware is On; the
	// same reason once. Nil where nobody is to be told but the log.
	NoHardware func(error)
}

// ErrUnsupported says that the kernel has no flowtables, or not those for nf_tables
// of family inet. It wants CONFIG_NF_FLOW_TABLE_INET and CONFIG_NFT_FLOW_OFFLOAD
// (both Linux 4.16), and before Linux 6.2 CONFIG_NFT_OBJREF; distributions have them as
// modules.
var ErrUnsupported = errors.New("the kernel has no flowtables (CONFIG_NF_FLOW_TABLE_INET, CONFIG_NFT_FLOW_OFFLOAD, before Linux 6.2 CONFIG_NFT_OBJREF)")
