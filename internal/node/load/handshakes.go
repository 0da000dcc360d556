// SPDX-License-Identifier: Apache-2.0

package load

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
)

// A connection that has no answer after the time unanswered has failed. A backend is failing if so many connections that
// began after its last answer have failed, within the time failuresCount.
const (
	unanswered    = 450 * time.Millisecond
	failures      = 3
	failuresCount = 10 * time.Second
)

// watched is a backend of the Services of a namespace.
type watched struct {
	namespace string
	desired.Backend
}

// handshakes are those of a backend.
type handshakes struct {
	frontend desired.Backend
	failed   []time.Duration // when connections without an answer began, the last failures of them
	answered time.Duration   // when the last answer came
	news     bool            // it has come since the last call of Handshakes
}

// Handshakes returns the backends of TCP that have answered a client since the last call, and those that are failing.
func (c *Counter) Handshakes() (all []desired.Handshake) {
	for id := range c.waiting {
		if c.now-c.open[id].begun >= unanswered {
			c.fail(id)
		}
	}
	for k, h := range c.met {
		h.failed = slices.DeleteFunc(h.failed, func(begun time.Duration) bool { return c.now-begun > failuresCount })
		if failing := len(h.failed) == failures; h.news || failing {
			all = append(all, desired.Handshake{Namespace: k.namespace, Frontend: key{desired.TCP, h.frontend}.destination(), Backend: k.Backend, Failing: failing})
		}
		if h.news = false; len(h.failed) == 0 && c.now-h.answered > failuresCount {
			delete(c.met, k)
		}
	}
	return all
}

// destination returns a key as clients connect to it.
func (k key) destination() desired.FrontendKey {
	return desired.FrontendKey{AddrPort: netip.AddrPortFrom(k.Addr(), k.Port()), Protocol: k.Protocol}
}

// meet returns the handshakes of a connection's backend.
func (c *Counter) meet(x connection) *handshakes {
	k := watched{x.namespace, x.Backend}
	h := c.met[k]
	if h == nil {
		h = &handshakes{answered: -1}
		c.met[k] = h
	}
	h.frontend = x.frontend
	return h
}

// answer notes that a connection was answered, also after it has failed: its backend is not failing.
func (c *Counter) answer(id uint32) {
	if x := c.open[id]; x.namespace != "" {
		h := c.meet(x)
		h.failed, h.answered, h.news = nil, c.now, true
		delete(c.waiting, id)
	}
}

// fail notes that a connection was refused, or not answered in time.
func (c *Counter) fail(id uint32) {
	delete(c.waiting, id)
	x := c.open[id]
	if h := c.meet(x); x.begun > h.answered {
		h.failed = append(h.failed, x.begun)
		h.failed = h.failed[max(0, len(h.failed)-failures):]
	}
}

// Probe connects to an endpoint from a network namespace, that of New, and closes the connection. If conntrack's table is
// full, which the kernel does not say, no answer tells nothing, and the error is another one.
func Probe(ctx context.Context, netns int, to netip.AddrPort) error {
	return dataplane.Inside(netns, func() error {
		full := tableFull()
		c, err := (&net.Dialer{}).DialContext(ctx, "tcp", to.String())
		switch {
		case err == nil:
			return c.Close()
		case full || tableFull():
			return fmt.Errorf("conntrack's table is full: %w", unix.ENOBUFS)
		}
		return err
	})
}

// tableFull reports whether the calling thread's network namespace has as many connections as conntrack tracks.
func tableFull() bool {
	var count, limit int
	for name, n := range map[string]*int{"count": &count, "max": &limit} {
		text, _ := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_" + name)
		_, _ = fmt.Sscan(string(text), n) // 0 without conntrack
	}
	return limit > 0 && count >= limit
}
