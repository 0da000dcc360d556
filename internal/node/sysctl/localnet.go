// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// routeLocalnet applies to all interfaces of the calling thread's network namespace
// (Documentation/networking/ip-sysctl.rst).
const routeLocalnet = "proc/sys/net/ipv4/conf/all/route_localnet"

// RouteLocalnet makes the kernel route packets from and to IPv4 loopback addresses, in the
// calling thread's network namespace, so that NodePorts answer on 127.0.0.1. The kernel then
// no longer drops packets from outside to loopback addresses, so a rule must (CVE-2020-8558).
func RouteLocalnet() error { return enableRouteLocalnet("/") }

// HasRouteLocalnet reports whether the parameter is set in the calling thread's network
// namespace.
func HasRouteLocalnet() (bool, error) {
	text, err := os.ReadFile("/" + routeLocalnet)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // a kernel without IPv4
	}
	return strings.TrimSpace(string(text)) != "0", err
}

func enableRouteLocalnet(root string) error {
	if err := ensure(filepath.Join(root, routeLocalnet), 1, different); err != nil {
		return fmt.Errorf("route_localnet: cannot be set to 1, so NodePorts do not answer on loopback addresses: %w", err)
	}
	return nil
}
