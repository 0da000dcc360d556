// SPDX-License-Identifier: Apache-2.0

package load

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/net/dns/dnsmessage"
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
	key
}

// handshakes are those of a backend.
type handshakes struct {
	frontend desired.Backend
	failed   []time.Duration // when connections without an answer began, the last failures of them
	answered time.Duration   // when the last answer came
	news     bool            // it has come since the last call of Handshakes
}

// Handshakes returns the backends that have answered a client since the last call, and those that are failing.
func (c *Counter) Handshakes() (all []desired.Handshake) {
	for id := range c.waiting {
		if c.now-c.open[id].begun >= unanswered {
			c.fail(id)
		}
	}
	for k, h := range c.met {
		h.failed = slices.DeleteFunc(h.failed, func(begun time.Duration) bool { return c.now-begun > failuresCount })
		if failing := len(h.failed) == failures; h.news || failing {
			all = append(all, desired.Handshake{Namespace: k.namespace, Frontend: key{k.Protocol, h.frontend}.destination(), Backend: k.Backend, Failing: failing})
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
	k := watched{x.namespace, x.key}
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

// query asks a server of DNS for its name (RFC 4892). Those that do not tell it answer, too.
var query, _ = (&dnsmessage.Message{Questions: []dnsmessage.Question{{Name: dnsmessage.MustNewName("id.server."), Type: dnsmessage.TypeTXT, Class: dnsmessage.ClassCHAOS}}}).Pack()

// Probe connects to an endpoint from a network namespace, that of New, and closes the connection. Over UDP it sends an empty
// datagram, or with dns a query. If conntrack's table is full, which the kernel does not say, no answer tells nothing, and the
// error is another one.
func Probe(ctx context.Context, netns int, to desired.Target, dns bool) error {
	return dataplane.Inside(netns, func() error {
		full := tableFull()
		c, err := (&net.Dialer{}).DialContext(ctx, strings.ToLower(to.Protocol.String()), to.Backend.String())
		if err == nil {
			defer c.Close()
			if to.Protocol == desired.UDP {
				err = exchange(ctx, c.(*net.UDPConn), to.Addr(), dns)
			}
		}
		if err != nil && (full || tableFull()) {
			return fmt.Errorf("conntrack's table is full: %w", unix.ENOBUFS)
		}
		return err
	})
}

// exchange sends two datagrams, as one may be lost. Without an answer to queries it returns an error. Many other servers
// never answer, so for them only an ICMP error is one.
func exchange(ctx context.Context, c *net.UDPConn, to netip.Addr, dns bool) error {
	raw, err := c.SyscallConn()
	const extended = unix.SizeofCmsghdr                                    // offset of struct sock_extended_err
	level, option, sender := unix.IPPROTO_IP, unix.IP_RECVERR, extended+20 // the offset is that of struct sockaddr's address
	if to.Is6() {
		level, option, sender = unix.IPPROTO_IPV6, unix.IPV6_RECVERR, extended+24
	}
	_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), level, option, 1) })
	defer context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Unix(1, 0)) })()
	for n := 0; n < 2 && err == nil; n++ {
		_, err = c.Write(map[bool][]byte{true: query}[dns])
	}
	if err == nil {
		_, err = c.Read(make([]byte, 1))
	}
	switch late := errors.Is(err, os.ErrDeadlineExceeded); {
	case err == nil || late && !dns:
		return nil
	case late:
		return err
	}
	// An ICMP error tells of the endpoint if no host has its address, or if it says itself that nothing has the port. Others are
	// of firewalls, or of routes.
	b := make([]byte, 128)
	_ = raw.Control(func(fd uintptr) { _, _, _, _, _ = unix.Recvmsg(int(fd), nil, b, unix.MSG_ERRQUEUE) })
	reason, code := unix.Errno(binary.NativeEndian.Uint32(b[extended:])), b[extended+6]
	if reason == unix.ECONNREFUSED && bytes.HasPrefix(b[sender:], to.AsSlice()) || reason == unix.EHOSTUNREACH && (code == 1 || code == 3) { // 3 in IPv6
		return reason
	}
	return fmt.Errorf("not of the endpoint: %v", err)
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
