// SPDX-License-Identifier: Apache-2.0

package see

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/ipvs"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/iptchains"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// ourTable is the name of the tables of nftables mode, and ourChains the prefix of the chains of
// iptables mode.
const (
	ourTable  = "slipstream"
	ourChains = "SLIP-"
)

// Kernel lists what the kernel has of Slipstream, one line for each table and the like. It needs
// no running proxy.
func Kernel() (lines []string, err error) {
	conn, err := nfnl.Dial(0)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	for _, t := range []nfnl.Table{{Family: nfnl.IPv4, Name: ourTable}, {Family: nfnl.IPv6, Name: ourTable}} {
		n, failed := countFrontends(conn, t)
		if errors.Is(failed, unix.ENOENT) || nfnl.IsUnsupported(failed) {
			continue
		}
		if errors.Is(failed, unix.EPERM) {
			return nil, fmt.Errorf("the kernel's tables can only be read by root with CAP_NET_ADMIN: %w", failed)
		}
		err = errors.Join(err, failed)
		lines = append(lines, fmt.Sprintf("nftables table %s %s with %d frontends", t.Family, t.Name, n))
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
			if strings.HasPrefix(c.Name, ourChains) {
				chains[iptables(t.IPv6)]++
			}
		}
	}
	for _, command := range slices.Sorted(maps.Keys(chains)) {
		lines = append(lines, fmt.Sprintf("%s: %d chains %s*", command, chains[command], ourChains))
	}
	if _, failed := conn.Table(nfnl.Table{Family: nfnl.INET, Name: fastpath.TableName}); failed == nil {
		lines = append(lines, "nftables table inet "+fastpath.TableName+", the fast path")
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

// iptables returns the name of the command for a family.
func iptables(ipv6 bool) string {
	if ipv6 {
		return "ip6tables"
	}
	return "iptables"
}

// legacyRules returns the rules of a table of iptables-legacy or ip6tables-legacy, as its command
// iptables-legacy-save prints them. There are none if the kernel has no such table.
func legacyRules(ctx context.Context, command, table string) ([]string, error) {
	names, err := os.ReadFile("/proc/net/" + strings.Replace(command, "tables", "_tables_names", 1))
	if err != nil || !strings.Contains("\n"+string(names), "\n"+table+"\n") {
		return nil, nil // also without the kernel's module: running the command would load it
	}
	out, err := exec.CommandContext(ctx, command+"-legacy-save", "-t", table).Output()
	if err != nil {
		return nil, fmt.Errorf("table %s of %s-legacy: %w", table, command, err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n"), nil
}
