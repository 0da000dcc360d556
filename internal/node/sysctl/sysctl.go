// SPDX-License-Identifier: Apache-2.0

// Package sysctl sets the kernel parameters that kube-proxy sets: for connection tracking
// (Documentation/networking/nf_conntrack-sysctl.rst) and, in iptables mode, for NodePorts on
// loopback addresses.
package sysctl

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"time"

	"k8s.io/klog/v2"
	"k8s.io/utils/cpuset"
)

// Conntrack is the parameters of connection tracking. Zero values do not change them. Timeouts
// belong to the calling thread's network namespace, in whole seconds; the others to the
// machine.
type Conntrack struct {
	Max                   int           // nf_conntrack_max, which is not lowered
	TCPEstablishedTimeout time.Duration // nf_conntrack_tcp_timeout_established
	TCPCloseWaitTimeout   time.Duration // nf_conntrack_tcp_timeout_close_wait
	TCPBeLiberal          bool          // nf_conntrack_tcp_be_liberal
	UDPTimeout            time.Duration // nf_conntrack_udp_timeout
	UDPStreamTimeout      time.Duration // nf_conntrack_udp_timeout_stream
}

// Apply sets the parameters that differ, and continues after errors, such as a read-only
// /proc/sys in a container. The files exist once the kernel has loaded nf_conntrack.
func (c Conntrack) Apply(ctx context.Context) error { return c.apply(ctx, "/") }

func (c Conntrack) apply(ctx context.Context, root string) (err error) {
	for _, p := range c.parameters() {
		if failed := ensure(ctx, filepath.Join(root, p.file), p.value, p.orMore); failed != nil {
			err = errors.Join(err, fmt.Errorf("%s: cannot be set to %d: %w", p.name, p.value, failed))
		}
	}
	return err
}

// Verify returns how many parameters Apply sets, and those that have other values.
func (c Conntrack) Verify() (n int, differences []string) {
	all := c.parameters()
	for _, p := range all {
		if is, err := read("/" + p.file); err != nil {
			differences = append(differences, fmt.Sprintf("%s: cannot be read: %v", p.name, err))
		} else if is < p.value || is > p.value && !p.orMore {
			differences = append(differences, fmt.Sprintf("%s is %d instead of %d", p.name, is, p.value))
		}
	}
	return len(all), differences
}

type parameter struct {
	name, file string
	value      int
	orMore     bool // as in kube-proxy since v1.37.2
}

// parameters are those to set.
func (c Conntrack) parameters() (all []parameter) {
	const entriesPerBucket = 4 // of the hash table, at most
	for _, p := range []parameter{
		{"nf_conntrack_max", "proc/sys/net/netfilter/nf_conntrack_max", c.Max, true},
		{"hashsize of nf_conntrack", "sys/module/nf_conntrack/parameters/hashsize", c.Max / entriesPerBucket, true},
		{value: seconds(c.TCPEstablishedTimeout), name: "nf_conntrack_tcp_timeout_established"},
		{value: seconds(c.TCPCloseWaitTimeout), name: "nf_conntrack_tcp_timeout_close_wait"},
		{value: map[bool]int{true: 1}[c.TCPBeLiberal], name: "nf_conntrack_tcp_be_liberal"},
		{value: seconds(c.UDPTimeout), name: "nf_conntrack_udp_timeout"},
		{value: seconds(c.UDPStreamTimeout), name: "nf_conntrack_udp_timeout_stream"},
	} {
		if p.file == "" {
			p.file = "proc/sys/net/netfilter/" + p.name
		}
		if p.value > 0 {
			all = append(all, p)
		}
	}
	return all
}

// TCPIsLiberal reports whether conntrack accepts TCP segments out of window in the calling
// thread's network namespace.
func TCPIsLiberal() bool {
	n, err := read("/proc/sys/net/netfilter/nf_conntrack_tcp_be_liberal")
	return err == nil && n != 0
}

// UDPTimeouts returns the kernel's timeouts of flows of UDP without and with answers, or its
// defaults if they cannot be read.
func UDPTimeouts() (unreplied, stream time.Duration) {
	return timeout("nf_conntrack_udp_timeout", 30), timeout("nf_conntrack_udp_timeout_stream", 120)
}

// TCPTimeout returns the kernel's timeout of established TCP connections, or its default if that
// cannot be read.
func TCPTimeout() time.Duration { return timeout("nf_conntrack_tcp_timeout_established", 432000) }

func timeout(name string, otherwise int) time.Duration {
	n, err := read(filepath.Join("/proc/sys/net/netfilter", name))
	if err != nil {
		n = otherwise
	}
	return time.Duration(n) * time.Second
}

func seconds(d time.Duration) int { return int(d / time.Second) }

// ensure writes a number to a file unless it has that one, or a larger one if that may be.
func ensure(ctx context.Context, file string, want int, orMore bool) error {
	is, err := read(file)
	if err != nil || is == want || orMore && is > want {
		return err
	}
	f, err := os.OpenFile(file, os.O_WRONLY, 0)
	if err != nil {
		return err
	}
	_, err = f.WriteString(strconv.Itoa(want))
	if err = errors.Join(err, f.Close()); err == nil {
		klog.FromContext(ctx).Info("Set a parameter of the kernel", "file", file, "from", is, "to", want)
	}
	return err
}

// read reads a number from a file.
func read(file string) (int, error) {
	text, err := os.ReadFile(file)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// routeLocalnet applies to all interfaces of the calling thread's network namespace
// (Documentation/networking/ip-sysctl.rst).
const routeLocalnet = "proc/sys/net/ipv4/conf/all/route_localnet"

// RouteLocalnet makes the kernel route packets from and to IPv4 loopback addresses, in the
// calling thread's network namespace, so that NodePorts answer on 127.0.0.1. The kernel then
// no longer drops packets from outside to loopback addresses, so a rule must (CVE-2020-8558).
func RouteLocalnet(ctx context.Context) error { return enableRouteLocalnet(ctx, "/") }

// HasRouteLocalnet reports whether the parameter is set in the calling thread's network
// namespace.
func HasRouteLocalnet() (bool, error) {
	n, err := read("/" + routeLocalnet)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // a kernel without IPv4
	}
	return n != 0, err
}

func enableRouteLocalnet(ctx context.Context, root string) error {
	if err := ensure(ctx, filepath.Join(root, routeLocalnet), 1, false); err != nil {
		return fmt.Errorf("route_localnet: cannot be set to 1, so NodePorts do not answer on loopback addresses: %w", err)
	}
	return nil
}

// CPUs returns the machine's number of CPUs, even if this process may use fewer.
func CPUs() int {
	if n, err := cpuset.NumCPU(); err == nil {
		return n
	}
	return runtime.NumCPU()
}
