// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os/exec"
	"regexp"
	"strings"

	"github.com/google/nftables"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// tables returns the nftables tables of a node, as "ip slipstream". It asks with a
// library that slipstream does not use, for a second opinion.
func tables(n *lab.Node) (names []string, err error) {
	var all []*nftables.Table
	err = n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		all, err = c.ListTables()
		return err
	})
	if err != nil {
		return nil, err
	}
	families := map[nftables.TableFamily]string{
		nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet",
		nftables.TableFamilyARP: "arp", nftables.TableFamilyBridge: "bridge", nftables.TableFamilyNetdev: "netdev",
	}
	for _, t := range all {
		names = append(names, families[t.Family]+" "+t.Name)
	}
	return names, nil
}

// checkTables says so if the kernel has no nf_tables.
func checkTables(n *lab.Node) error {
	if _, err := tables(n); err != nil {
		return fmt.Errorf("this kernel has no nf_tables (CONFIG_NF_TABLES): %w", err)
	}
	return nil
}

// zeros are those that a number does not need.
var zeros = regexp.MustCompile(`\b0x0{1,7}`)

// nftFrontends is what the nft command shows of the Services in a node's kernel,
// one line for each address; nil where there is no such command, or one that does
// not understand.
func nftFrontends(ctx context.Context, n *lab.Node) []string {
	if _, err := exec.LookPath("nft"); err != nil {
		return nil
	}
	out, err := n.Run(ctx, "nft", "list", "map", "ip", "slipstream", "frontends")
	if err != nil {
		return nil
	}
	_, list, ok := strings.Cut(string(out), "elements = {")
	list, _, closed := strings.Cut(list, "}")
	if !ok || !closed {
		return nil
	}
	var lines []string
	for _, e := range strings.Split(list, ",") {
		if e = strings.Join(strings.Fields(e), " "); e != "" {
			lines = append(lines, zeros.ReplaceAllString(e, "0x"))
		}
	}
	return lines
}
