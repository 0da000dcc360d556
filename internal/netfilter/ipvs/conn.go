// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"unsafe"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/sys/unix"
)

// Conn is a netlink socket to IPVS of one network namespace. It is for one goroutine at a
// time. It is of no use after an error of the socket or the end of a context.
type Conn struct {
	sock   *netlink.Conn
	family netlink.HeaderType
}

// Dial opens a socket in the network namespace that the file descriptor names, or in the
// calling thread's when netns is 0. The kernel loads its module ip_vs if it has one. Without
// IPVS the error is a [feature.Missing]. Use of the socket needs CAP_NET_ADMIN.
func Dial(netns int) (*Conn, error) {
	s, err := sock.Dial(unix.NETLINK_GENERIC, "IPVS", netlink.Config{NetNS: netns, MessageBufferSize: 64 << 10})
	if err != nil {
		return nil, err
	}
	c := &Conn{sock: s}
	if err := c.resolve(); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	return c, nil
}

// Close closes the socket.
func (c *Conn) Close() error { return c.sock.Close() }

// resolve asks the kernel for the number of the family "IPVS".
func (c *Conn) resolve() error {
	r := request(unix.CTRL_CMD_GETFAMILY).bytes(unix.CTRL_ATTR_FAMILY_NAME, []byte("IPVS\x00"))
	answers, err := c.sock.Execute(netlink.Message{
		Header: netlink.Header{Type: unix.GENL_ID_CTRL, Flags: netlink.Request}, Data: r.data})
	switch {
	case errors.Is(err, unix.ENOENT):
		return feature.Missing{Feature: "IPVS", Remedy: "needs CONFIG_IP_VS"}
	case err != nil:
		return fmt.Errorf("looking for IPVS: %w", err)
	}
	for _, a := range answers {
		c.family = netlink.HeaderType(number(nfnl.Attr(attributes(a.Data), unix.CTRL_ATTR_FAMILY_ID)))
	}
	return nil
}

// Services returns all virtual servers.
func (c *Conn) Services(ctx context.Context) (all []Service, err error) {
	err = c.dump(ctx, request(cmdGetService), func(data []byte) error {
		s, err := decodeService(data)
		all = append(all, s)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing IPVS virtual servers: %w", err)
	}
	return all, nil
}

// Number returns how many virtual servers for IPv4 the calling thread's network namespace has. However many there are, it
// costs the same.
func Number() (int, error) {
	s, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, err
	}
	defer unix.Close(s)
	const getInfo = 64 + 1024 + 64 + 1 // IP_VS_SO_GET_INFO
	var info struct{ version, connections, services uint32 }
	size := uint32(unsafe.Sizeof(info))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(s), unix.IPPROTO_IP, getInfo, uintptr(unsafe.Pointer(&info)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, fmt.Errorf("counting IPVS virtual servers: %w", errno)
	}
	return int(info.services), nil
}

// Destinations returns the destinations of a virtual server; none if the kernel does not have
// it.
func (c *Conn) Destinations(ctx context.Context, k Key) (all []Destination, err error) {
	err = c.dump(ctx, request(cmdGetDest).key(k), func(data []byte) error {
		d, err := decodeDestination(data, k.family())
		all = append(all, d)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("listing destinations of IPVS virtual server %s: %w", k, err)
	}
	return all, nil
}

// MayBeProxys reports whether a virtual server may be that of a Service proxy: its address is not in the excluded
// ranges, and it has no direct routing or tunnels, which no Service proxy uses.
func (c *Conn) MayBeProxys(ctx context.Context, k Key, exclude []netip.Prefix) (bool, error) {
	if slices.ContainsFunc(exclude, func(p netip.Prefix) bool { return p.Contains(k.Addr) }) {
		return false, nil
	}
	all, err := c.Destinations(ctx, k)
	return err == nil && !slices.ContainsFunc(all, func(d Destination) bool { return !d.Masquerading }), err
}

// Execute carries out requests in order, as [sock.Execute].
func (c *Conn) Execute(ctx context.Context, requests []Request, failed func(i int, err error)) error {
	messages := make([]netlink.Message, len(requests))
	for i, r := range requests {
		messages[i] = netlink.Message{Header: netlink.Header{Type: c.family, Flags: netlink.Request}, Data: r.data}
	}
	if err := sock.Execute(ctx, c.sock, messages, failed); err != nil {
		return fmt.Errorf("IPVS: %w", err)
	}
	return nil
}

// dump visits the answers to a request.
func (c *Conn) dump(ctx context.Context, r Request, visit func(data []byte) error) error {
	return sock.Exchange(ctx, c.sock, func() error {
		_, err := c.sock.Send(netlink.Message{Header: netlink.Header{Type: c.family, Flags: netlink.Request | netlink.Dump}, Data: r.data})
		if err != nil {
			return err
		}
		var failed error
		for m, err := range c.sock.ReceiveIter() {
			if err != nil {
				return err
			}
			if err := visit(m.Data); failed == nil {
				failed = err // read on, so that the next exchange does not meet the rest
			}
		}
		return failed
	})
}

// Timeouts returns the timeouts of connections.
func (c *Conn) Timeouts(ctx context.Context) (t Timeouts, err error) {
	err = sock.Exchange(ctx, c.sock, func() error {
		answers, err := c.sock.Execute(netlink.Message{Header: netlink.Header{Type: c.family, Flags: netlink.Request}, Data: request(cmdGetConfig).data})
		for _, a := range answers {
			all := attributes(a.Data)
			t = Timeouts{TCP: number(nfnl.Attr(all, attrTCP)), TCPFin: number(nfnl.Attr(all, attrTCPFin)), UDP: number(nfnl.Attr(all, attrUDP))}
		}
		return err
	})
	if err != nil {
		return t, fmt.Errorf("reading IPVS timeouts: %w", err)
	}
	return t, nil
}

// SetTimeouts sets the timeouts of connections.
func (c *Conn) SetTimeouts(ctx context.Context, t Timeouts) error {
	r := request(cmdSetConfig).uint32(attrTCP, t.TCP).uint32(attrTCPFin, t.TCPFin).uint32(attrUDP, t.UDP)
	var refused error
	err := c.Execute(ctx, []Request{r}, func(_ int, err error) { refused = err })
	if err = errors.Join(err, refused); err != nil {
		return fmt.Errorf("setting IPVS timeouts: %w", err)
	}
	return nil
}

// Schedulers returns the schedulers that the kernel has, in alphabetical order. The kernel loads the
// modules of schedulers.
func (c *Conn) Schedulers(ctx context.Context) (names []string, err error) {
	for _, name := range schedulerNames {
		refused, err := c.Try(ctx, name, false)
		switch {
		case err == nil && refused == nil:
			names = append(names, name)
		case err != nil || !errors.Is(refused, unix.ENOENT):
			return nil, fmt.Errorf("probing IPVS scheduler %s: %w", name, errors.Join(err, refused))
		}
	}
	slices.Sort(names)
	return names, nil
}

// Try reports why the kernel refuses a virtual server with destinations; nil if it does not. It
// makes and removes one, by a mark that packets do not have, in one system call, so it does not stay
// if the process is killed.
func (c *Conn) Try(ctx context.Context, scheduler string, ipv6 bool, to ...netip.AddrPort) (refused, err error) {
	all, err := c.Services(ctx)
	if err != nil {
		return nil, err
	}
	key, mask := Key{Mark: 0xfffffffe, Mark6: ipv6}, uint8(32)
	if ipv6 {
		mask = 128
	}
	for slices.ContainsFunc(all, func(s Service) bool { return s.Mark == key.Mark }) {
		key.Mark-- // another program's
	}
	requests := []Request{AddService(Service{Key: key, Scheduler: scheduler, MaskBits: mask})}
	requests = append(requests, collect.From(to, func(a netip.AddrPort) Request { return AddDestination(key, Destination{AddrPort: a, Weight: 1}) })...)
	err = c.Execute(ctx, append(requests, DeleteService(key)), func(_ int, err error) {
		if refused == nil {
			refused = err
		}
	})
	return refused, err
}
