// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"time"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/iface"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// DefaultRefresh is how often all connections take the slow path once, which renews the
// timeouts of their conntrack entries (see the package's documentation).
const DefaultRefresh = time.Hour

// Scope says which connections are offloaded. The zero value is Services.
type Scope string

// The scopes.
const (
	// Services are connections whose original destination is a frontend of a
	// Service.
	Services Scope = "services"
	// All is every connection that the node forwards.
	All Scope = "all"
)

// Engine is what forwards packets of offloaded connections. The zero value is Flowtable.
type Engine string

// The engines.
const (
	// Flowtable is the flowtable of nf_tables.
	Flowtable Engine = "flowtable"
	// EBPF is a BPF program, see package ebpf.
	EBPF Engine = "ebpf"
	// AutoEngine is the flowtable if the kernel has it, and the BPF program otherwise.
	AutoEngine Engine = "auto"
)

// Hardware says whether flows are offloaded to network hardware. The zero value is Auto.
type Hardware string

// The choices for hardware.
const (
	// Auto uses hardware if the drivers of all interfaces support it.
	Auto Hardware = "auto"
	// On is like Auto, but reports if hardware is not used.
	On Hardware = "on"
	// Off does not use hardware.
	Off Hardware = "off"
)

// Config configures a Controller. The zero value is off.
type Config struct {
	// NetNS is a file descriptor of the network namespace; 0 is the calling
	// thread's.
	NetNS int

	// Threshold is the number of packets, of both directions together, after which
	// a connection is offloaded. If 0, the Controller removes the table of an
	// earlier run, and does nothing else.
	Threshold uint32

	// Commits, if not nil, counts the transactions of the dataplane and the Controller
	// in the namespace, so that neither takes the other's for those of another program.
	Commits *nfnl.Commits

	Scope    Scope
	Engine   Engine
	Hardware Hardware // of the engine Flowtable

	// GRO is switched on at the node's ends of veths that take part. What Slipstream has switched on it switches off
	// when this is not set any more.
	GRO bool

	// Exclude selects connections that are not offloaded.
	Exclude Exclude

	// Bypass says which rules of other programs connections may bypass.
	Bypass Bypass

	// Interfaces selects the interfaces that take part; nil is iface.Default. Only
	// connections between two of these interfaces are offloaded.
	Interfaces *iface.Selector

	// Refresh is how often all connections take the slow path once; 0 is
	// [DefaultRefresh], and a negative value is never.
	Refresh time.Duration

	withoutTCX   bool          // as on Linux before 6.6
	lease        time.Duration // of the engine EBPF; its own if 0
	excludePause time.Duration // excludePause, unless a test sets another one

	// NoHardware, if not nil, receives the reason why hardware is not used although
	// Hardware is On. The same reason is reported once.
	NoHardware func(error)
}
