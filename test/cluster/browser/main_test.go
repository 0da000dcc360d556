// SPDX-License-Identifier: Apache-2.0

package browser

import (
	"errors"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

var (
	slipstream  = flag.String("slipstream", "../../../bin/slipstream", "program to test")
	screenshots = flag.String("screenshots", "", "directory for screenshots of the page")
)

const marker = "SLIPSTREAM_BROWSER_TEST"

// TestMain runs all of it in a network namespace of its own: proxy, browser and this process.
func TestMain(m *testing.M) {
	flag.Parse()
	if os.Getenv(marker) == "" {
		fmt.Fprintln(os.Stderr, "browser:", enter())
		os.Exit(1)
	}
	if err := prepare(); err != nil {
		fmt.Fprintln(os.Stderr, "browser:", err)
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// enter replaces this process by one in a new network namespace.
func enter() error {
	if _, err := exec.LookPath("chromium"); err != nil {
		return fmt.Errorf("%w (test/deps.sh installs it)", err)
	}
	runtime.LockOSThread()
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("network namespace: %w", err)
	}
	return unix.Exec("/proc/self/exe", os.Args, append(os.Environ(), marker+"=1"))
}

// nodeAddress is what clients connect from: without an address of its own, lo cannot masquerade.
const nodeAddress = "192.0.2.1/32"

// prepare makes all addresses of Services and endpoints reachable: they are this namespace's own.
func prepare() error {
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		return err
	}
	node, err := netlink.ParseAddr(nodeAddress)
	if err != nil {
		return err
	}
	return errors.Join(netlink.LinkSetUp(lo), netlink.AddrAdd(lo, node),
		route(lo, serviceNetwork, unix.RTN_UNICAST),
		route(lo, podNetwork, unix.RTN_LOCAL),
		os.WriteFile("/proc/sys/net/netfilter/nf_conntrack_acct", []byte("1"), 0))
}

func route(lo netlink.Link, network string, kind int) error {
	to, err := netlink.ParseIPNet(network)
	if err != nil {
		return err
	}
	table := unix.RT_TABLE_MAIN
	if kind == unix.RTN_LOCAL {
		table = unix.RT_TABLE_LOCAL
	}
	r := &netlink.Route{LinkIndex: lo.Attrs().Index, Dst: to, Type: kind, Table: table, Scope: netlink.SCOPE_HOST}
	if err := netlink.RouteAdd(r); err != nil {
		return fmt.Errorf("route to %s: %w", network, err)
	}
	return nil
}
