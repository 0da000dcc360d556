// SPDX-License-Identifier: Apache-2.0

package see

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"golang.org/x/sys/unix"
)

// Kernel lists what the kernel has of Slipstream, one line for each table and the like. It needs
// no running proxy.
func Kernel() (lines []string, err error) {
	conn, err := nfnl.Dial(0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, t := range []nfnl.Table{{Family: nfnl.IPv4, Name: firewall.OurTable}, {Family: nfnl.IPv6, Name: firewall.OurTable}} {
		n, failed := countFrontends(conn, t)
		if errors.Is(failed, unix.ENOENT) || nfnl.IsUnsupported(failed) {
			continue
		}
		if errors.Is(failed, unix.EPERM) {
			return nil, fmt.Errorf("the kernel's tables can only be read by root with CAP_NET_ADMIN: %w", failed)
		}
		err = errors.Join(err, failed)
		lines = append(lines, fmt.Sprintf("nftables table %s %s with %s", t.Family, t.Name, plain.Number(n, "frontend")))
	}
	chains := map[string]int{}
	for _, t := range iptchains.Tables() {
		var all []iptchains.Chain
		err = errors.Join(err, nfnl.Undisturbed(func() error {
			return t.View(func(v iptchains.View) (err error) {
				all, err = v.Chains()
				return err
			})
		}))
		for _, c := range all {
			if strings.HasPrefix(c.Name, firewall.OurChains) {
				chains[firewall.Command(t.IPv6)]++
			}
		}
	}
	lines = append(lines, collect.From(slices.Sorted(maps.Keys(chains)), func(command string) string {
		return fmt.Sprintf("%s: %s %s*", command, plain.Number(chains[command], "chain"), firewall.OurChains)
	})...)
	for _, t := range []nfnl.Table{{Family: nfnl.IPv4, Name: firewall.LimitsTable}, {Family: nfnl.IPv6, Name: firewall.LimitsTable}, {Family: nfnl.INET, Name: firewall.FastPathTable}} {
		if _, failed := conn.Table(t); failed == nil {
			lines = append(lines, fmt.Sprintf("nftables table %s %s", t.Family, t.Name))
		}
	}
	if owned, failed := ipvs.Owned(); failed == nil && owned {
		lines = append(lines, "IPVS virtual servers, and the interface kube-ipvs0")
	}
	return lines, err
}

func countFrontends(conn *nfnl.Conn, t nfnl.Table) (n int, err error) {
	if _, err := conn.Table(t); err != nil {
		return 0, err
	}
	for _, set := range []string{"frontends", "local-frontends", "node-ports", "local-node-ports"} {
		found := 0
		err = nfnl.Undisturbed(func() error {
			found = 0
			return conn.Elements(t, set, func(nfnl.Element) { found++ })
		})
		if err != nil && !errors.Is(err, unix.ENOENT) {
			return n, err
		}
		n += found
	}
	return n, nil
}
