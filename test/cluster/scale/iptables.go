// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/slipstream-proxy/slipstream/test/cluster/site"
)

// The variants of the iptables commands. Both are installed on Debian, where iptables-nft is
// the default. Its version 1.8.9 looks through all chains for each chain it adds: a start of
// kube-proxy with 1,500 Services took 16 s, and one with 2,000 took 45 s, nearly all of it in
// iptables-restore. That would measure a defect of one version.
const (
	legacyVariant = "legacy"
	nftVariant    = "nft"
)

// iptablesMode is the mode's name in the configuration of all proxies.
const iptablesMode = "iptables"

// hint makes the chain by which a kubelet shows which variant its node uses (KEP-3178):
// Slipstream looks for it, kube-proxy takes what is called iptables.
func hint(ctx context.Context, n *site.Node) error {
	_, err := n.Run(ctx, "iptables", "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
	return err
}

// useIPTables makes all programs that are started from now on find one variant under the
// usual names, by links in dir.
func useIPTables(variant, dir string) error {
	dir = filepath.Join(dir, "iptables")
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	for _, family := range []string{"iptables", "ip6tables"} {
		for _, suffix := range []string{"", "-save", "-restore"} {
			path, err := exec.LookPath(family + "-" + variant + suffix)
			if err != nil {
				return fmt.Errorf("-iptables %s: %w", variant, err)
			}
			link := filepath.Join(dir, family+suffix)
			if err := os.Symlink(path, link); err != nil && !os.IsExist(err) {
				return err
			}
		}
	}
	return os.Setenv("PATH", dir+string(os.PathListSeparator)+os.Getenv("PATH"))
}

// iptablesVersion is what the command prints as its version, e.g. "iptables v1.8.9 (legacy)".
func iptablesVersion() string {
	out, err := exec.Command("iptables", "--version").Output()
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(out))
}
