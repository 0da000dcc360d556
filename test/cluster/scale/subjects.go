// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

// subject is a proxy that is measured, in one of its modes.
type subject struct {
	name string
	kind proxies.Kind
	mode string
	// pause between two changes: more than the least time between two syncs.
	pause time.Duration
}

// The pauses follow from the defaults of min-sync-period: 10 ms in Slipstream's nftables
// mode, 1 s in its iptables mode and in both of kube-proxy's.
const (
	longPause  = 1200 * time.Millisecond
	shortPause = 30 * time.Millisecond
)

// subjects are all that can be measured. Ratios are to the first one that is.
var subjects = []subject{
	{"slipstream", proxies.Slipstream, "nftables", shortPause},
	{slipstreamIPTables, proxies.Slipstream, iptablesMode, longPause},
	{"kube-proxy-nftables", proxies.KubeProxyNFTables, "nftables", longPause},
	{kubeProxyIPTables, proxies.KubeProxyIPTables, iptablesMode, longPause},
}

// The subjects in iptables mode.
const (
	slipstreamIPTables = "slipstream-iptables"
	kubeProxyIPTables  = "kube-proxy-iptables"
)

func subjectNames() (names []string) {
	for _, s := range subjects {
		names = append(names, s.name)
	}
	return names
}

// programs are the paths of the programs.
type programs struct{ slipstream, kubeProxy string }

// findPrograms builds programs that are not built yet.
func findPrograms(ctx context.Context, o *options, dir string, log upstream.Log) (p programs, err error) {
	if p.kubeProxy, err = upstream.Binary(ctx, "kube-proxy", log); err != nil {
		return p, err
	}
	if o.slipstream != "" {
		p.slipstream, err = filepath.Abs(o.slipstream)
		return p, err
	}
	p.slipstream, err = proxies.BuildSlipstream(ctx, dir)
	return p, err
}

func (p *programs) of(s subject) string {
	if s.kind == proxies.Slipstream {
		return p.slipstream
	}
	return p.kubeProxy
}

// version is what the program prints as its version.
func (p *programs) version(ctx context.Context, s subject) string {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	args := []string{"--version"}
	if s.kind == proxies.Slipstream {
		args = []string{"run", "--version"}
	}
	out, err := exec.CommandContext(ctx, p.of(s), args...).Output()
	if err != nil {
		return ""
	}
	text := strings.TrimSpace(string(out))
	if s.mode == iptablesMode {
		text += ", " + iptablesVersion()
	}
	return text
}

// choose returns the subjects of these names, in the order of [subjects].
func choose(names []string) (chosen []subject) {
	for _, s := range subjects {
		if slices.Contains(names, s.name) {
			chosen = append(chosen, s)
		}
	}
	return chosen
}
