// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cockroachdb/datadriven"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// attempt holds the arguments of a connect directive.
type attempt struct {
	from   *lab.Machine
	to     netip.AddrPort
	proto  lab.Protocol
	n      int           // connections, at most
	gap    time.Duration // before each of them
	sticky bool
	until  string // the server at which to stop
	opts   []lab.ConnectOption
}

// attempt reads the arguments of connect.
func (top *topology) attempt(t *testing.T, d *datadriven.TestData) attempt {
	var from, to, source, gap, until string
	n, port, proto := 40, 0, "tcp"
	for key, value := range map[string]any{
		"from": &from, "to": &to, "proto": &proto, "source": &source, "port": &port, "n": &n, "gap": &gap, "until": &until,
	} {
		if d.HasArg(key) {
			d.ScanArgs(t, key, value)
		}
	}
	a := attempt{
		from: top.machines[from], proto: lab.Protocol(strings.ToUpper(proto)), n: n, sticky: d.HasArg("sticky"), until: until,
	}
	if a.from == nil {
		d.Fatalf(t, "no such machine: %s", from)
	}
	var err error
	if a.to, err = netip.ParseAddrPort(to); err != nil {
		d.Fatalf(t, "%v", err)
	}
	if gap != "" {
		if a.gap, err = time.ParseDuration(gap); err != nil {
			d.Fatalf(t, "%v", err)
		}
	}
	if source != "" || port != 0 {
		var addr netip.Addr
		if source != "" {
			addr = netip.MustParseAddr(source)
		}
		a.opts = append(a.opts, lab.Source(netip.AddrPortFrom(addr, uint16(port))))
	}
	return a
}

// connect makes one connection. A port that was just released may still be in use for a
// moment: a command that this process starts holds its sockets until exec.
func (a *attempt) connect() (reply lab.Reply, err error) {
	for range 1000 {
		reply, err = a.from.Connect(a.proto, a.to, a.opts...)
		if !errors.Is(err, unix.EADDRINUSE) {
			break
		}
		time.Sleep(2 * time.Millisecond)
	}
	return reply, err
}

// connect makes connections and describes their results.
func (top *topology) connect(t *testing.T, d *datadriven.TestData) string {
	a := top.attempt(t, d)
	seen := map[string]map[string]bool{} // owner of the source address -> servers
	failures := map[string]bool{}
	for i := 0; i < a.n; i++ {
		time.Sleep(a.gap)
		reply, err := a.connect()
		if err != nil {
			failures[lab.Outcome(err)] = true
			if len(failures) == 1 && len(seen) == 0 {
				a.n = min(a.n, 3) // the others would take as long to fail
			}
			continue
		}
		as := top.owner[reply.Seen.Addr().Unmap()]
		if as == "" {
			as = reply.Seen.Addr().String()
		}
		if reply.Server == a.until {
			return reply.Server + " at last, seen as " + as + "\n"
		}
		if seen[as] == nil {
			seen[as] = map[string]bool{}
		}
		seen[as][reply.Server] = true
	}
	var out []string
	for _, as := range slices.Sorted(maps.Keys(seen)) {
		servers := strings.Join(slices.Sorted(maps.Keys(seen[as])), " ")
		if a.sticky && len(seen) == 1 && len(seen[as]) == 1 {
			servers = "always the same one"
		}
		out = append(out, servers+", seen as "+as)
	}
	out = append(out, slices.Sorted(maps.Keys(failures))...)
	return strings.Join(out, "\n") + "\n"
}
