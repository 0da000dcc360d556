// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"fmt"
	"net"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
)

// TestUnspecified connects to the unspecified address, which means the client itself, at a port that is also a
// NodePort. It reaches the client's own listener, and no Service if there is none.
func TestUnspecified(t *testing.T) {
	// As in mode iptables, where the node serves NodePorts at loopback addresses.
	w := newWorldWith(t, desired.Config{NodeName: node, MaxTable: desired.TableSizes()[0], NodePorts: desired.NodePortAddresses{Loopback: true}})
	w.fill(1, nil)
	w.state.SetNodeAddresses([]netip.Addr{netip.MustParseAddr("192.168.100.11"), netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.5.5.5"), netip.IPv6Loopback()})
	w.reconcile()
	for _, from := range []interface {
		Do(func() error) error
		Name() string
	}{w.client, w.node} {
		for _, c := range []struct{ listen, connect string }{
			{"127.0.0.1", "0.0.0.0"}, {"0.0.0.0", "0.0.0.0"}, {"", "0.0.0.0"},
			{"127.0.0.1", "::ffff:0.0.0.0"}, {"0.0.0.0", "::ffff:0.0.0.0"}, {"", "::ffff:0.0.0.0"},
			{"::1", "::"}, {"::", "::"}, {"", "::"},
			{"127.0.0.1", "127.0.0.1"}, {"", "127.0.0.1"}, {"127.5.5.5", "127.5.5.5"}, {"127.0.0.1", "::ffff:127.0.0.1"}, {"::1", "::1"}, {"", "::1"},
		} {
			w.check(from.Do(func() error {
				err := reachesItself(c.listen, netip.MustParseAddr(c.connect))
				if err != nil {
					t.Errorf("%s: listener at %q, connect to %s: %v", from.Name(), c.listen, c.connect, err)
				}
				return nil
			}))
		}
	}
}

// reachesItself connects to an address at nodePort, with a listener at another address there; without one
// if that is "".
func reachesItself(listen string, to netip.Addr) error {
	var own *net.TCPListener
	if listen != "" {
		network := "tcp6"
		if netip.MustParseAddr(listen).Is4() {
			network = "tcp4"
		}
		l, err := net.Listen(network, net.JoinHostPort(listen, fmt.Sprint(nodePort)))
		if err != nil {
			return err
		}
		defer l.Close()
		own = l.(*net.TCPListener)
	}
	family, address := unix.AF_INET6, unix.Sockaddr(&unix.SockaddrInet6{Addr: to.As16(), Port: nodePort})
	if to.Is4() {
		family, address = unix.AF_INET, &unix.SockaddrInet4{Addr: to.As4(), Port: nodePort}
	}
	s, err := unix.Socket(family, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(s)
	err = unix.Connect(s, address) // loopback answers at once
	switch {
	case own == nil && err != unix.ECONNREFUSED:
		return fmt.Errorf("error %v, want that it is refused", err)
	case own == nil:
		return nil
	case err != nil:
		return err
	}
	if err := own.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return err
	}
	c, err := own.Accept()
	if err != nil {
		return err
	}
	return c.Close()
}
