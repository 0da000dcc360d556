// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"context"
	"io"
	"net"
	"net/http"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// DialContext is net.Dialer.DialContext in the namespace, to an address given as numbers.
func (n *Namespace) DialContext(ctx context.Context, network, address string) (conn net.Conn, err error) {
	err = n.Do(func() error {
		conn, err = new(net.Dialer).DialContext(ctx, network, address)
		return err
	})
	return conn, err
}

// Listen is net.Listen in the namespace.
func (n *Namespace) Listen(network, address string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// HTTPClient returns a client that makes a new connection from the namespace for each
// request.
func (n *Namespace) HTTPClient() *http.Client {
	return &http.Client{Transport: &http.Transport{DisableKeepAlives: true, DialContext: n.DialContext}}
}

// Get reads a URL from the namespace, whatever the response's status is.
func (n *Namespace) Get(ctx context.Context, url string) (status int, body string, err error) {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return 0, "", err
	}
	response, err := n.HTTPClient().Do(request)
	if err != nil {
		return 0, "", err
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	return response.StatusCode, string(all), err
}

// Netlink returns a rtnetlink handle of the namespace, which is closed with it.
func (n *Namespace) Netlink() *netlink.Handle { return n.nl }

// AddLocalRange makes every address of a range the namespace's own, to serve on and to
// connect from, by a local route.
func (n *Namespace) AddLocalRange(p netip.Prefix) error {
	// Without this, IPv6 sockets bind to addresses of links only.
	if err := n.SetSysctl("ipv6/ip_nonlocal_bind", "1"); err != nil {
		return err
	}
	lo, err := n.nl.LinkByName("lo")
	if err != nil {
		return err
	}
	return n.addRoute(netlink.Route{
		LinkIndex: lo.Attrs().Index, Dst: ipNet(p.Masked()),
		Type: unix.RTN_LOCAL, Table: unix.RT_TABLE_LOCAL, Scope: netlink.SCOPE_HOST,
	})
}
