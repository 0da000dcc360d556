// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Key identifies a virtual server: by address, port and protocol, or by the mark of packets.
// It is comparable.
type Key struct {
	Addr     netip.Addr // not valid for a server by mark
	Port     uint16
	Protocol uint8 // an IANA number: 6, 17 or 132

	// Mark is the packet mark, not 0, of a server by mark. It takes precedence over
	// servers by address, and the mark has to be equal in all 32 bits.
	Mark  uint32
	Mark6 bool // the server by mark is for IPv6
}

// IPv6 reports whether the virtual server is for IPv6.
func (k Key) IPv6() bool { return k.Mark6 || k.Addr.Is6() }

// String is "10.96.0.10:53/17", or "mark 7" or "mark 7 (IPv6)".
func (k Key) String() string {
	switch {
	case k.Mark == 0:
		return fmt.Sprintf("%s/%d", netip.AddrPortFrom(k.Addr, k.Port), k.Protocol)
	case k.Mark6:
		return fmt.Sprintf("mark %d (IPv6)", k.Mark)
	}
	return fmt.Sprintf("mark %d", k.Mark)
}

// Flags of virtual servers.
const (
	Persistent = 0x1 // a client keeps its destination for the server's Timeout
	Scheduler1 = 0x8 // of the scheduler: sh-fallback, mh-fallback
	Scheduler2 = 0x10
	Scheduler3 = 0x20

	// hashed is set by the kernel for each server that it has.
	hashed = 0x2
)

// Service is a virtual server. It is comparable.
type Service struct {
	Key
	Scheduler string // such as "rr"
	Flags     uint32
	Timeout   uint32 // of persistence, in seconds
	Engine    string // of persistence, such as "sip", when read; this package sets none

	// MaskBits is the length of the part of client addresses that persistence tells
	// apart, 1 to 32 or 128.
	MaskBits uint8
}

// Destination is a real server of a virtual server.
type Destination struct {
	netip.AddrPort
	Weight uint32 // 0 takes no new connections

	// Masquerading is the forwarding method by NAT, the only one that this package
	// sets. It is false for destinations of other programs that use another.
	Masquerading bool

	// Limited says that another program has set thresholds of its number of connections. Set when read.
	Limited bool

	// Numbers of connections, set when read.
	Active, Inactive, Persistent uint32
}

// Connections is the number of connections that the kernel knows, without persistence
// templates.
func (d *Destination) Connections() uint32 { return d.Active + d.Inactive }

// Timeouts are those of connections, in seconds. 0 leaves the kernel's.
type Timeouts struct{ TCP, TCPFin, UDP uint32 }

// schedulerNames are the schedulers that Linux has.
var schedulerNames = strings.Fields("rr wrr lc wlc fo ovf lblc lblcr dh sh mh sed nq twos")

// Scheduler is a scheduler with its flags, of Scheduler1 to Scheduler3. It is comparable.
type Scheduler struct {
	Name  string
	Flags uint32
}

// schedulerFlags are the flags that schedulers have, with ipvsadm's names.
var schedulerFlags = map[string]uint32{
	"sh-fallback": Scheduler1, "sh-port": Scheduler2,
	"mh-fallback": Scheduler1, "mh-port": Scheduler2,
}

// ParseScheduler parses the name of a scheduler, and its flags after commas: "rr" or
// "sh,sh-port,sh-fallback". "mh" without flags has mh-port, as kube-proxy sets it.
func ParseScheduler(text string) (s Scheduler, err error) {
	name, flags, more := strings.Cut(text, ",")
	if !slices.Contains(schedulerNames, name) {
		return s, fmt.Errorf("%q is none of the IPVS schedulers %s", name, strings.Join(schedulerNames, ", "))
	}
	s.Name = name
	if text == "mh" {
		flags, more = "mh-port", true
	}
	if !more {
		return s, nil
	}
	for flag := range strings.SplitSeq(flags, ",") {
		f := schedulerFlags[flag]
		if f == 0 || !strings.HasPrefix(flag, name+"-") {
			return s, fmt.Errorf("%q is not a flag of the IPVS scheduler %s", flag, name)
		}
		s.Flags |= f
	}
	return s, nil
}

// String is the form that ParseScheduler parses.
func (s Scheduler) String() string {
	text := s.Name
	for _, flag := range slices.Sorted(maps.Keys(schedulerFlags)) {
		if strings.HasPrefix(flag, s.Name+"-") && s.Flags&schedulerFlags[flag] != 0 {
			text += "," + flag
		}
	}
	return text
}

// Scheduling returns the scheduler of a virtual server with its flags.
func (s *Service) Scheduling() Scheduler {
	return Scheduler{s.Scheduler, s.Flags & (Scheduler1 | Scheduler2 | Scheduler3)}
}

// family is the address family of a key.
func (k Key) family() uint16 {
	if k.IPv6() {
		return unix.AF_INET6
	}
	return unix.AF_INET
}
