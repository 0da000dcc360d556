// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// mode is a kind of backend that can be measured.
type mode struct {
	open  func(dataplane.Config) (dataplane.Dataplane, error)
	probe func() error // what the kernel lacks for it, in one line
}

// modes are the kinds of backends by name.
var modes = map[string]mode{
	"nftables": {
		open:  func(c dataplane.Config) (dataplane.Dataplane, error) { return nftables.New(c) },
		probe: probeNFTables,
	},
	iptablesPrefix + string(iptables.Legacy): iptablesMode(iptables.Legacy),
	iptablesPrefix + string(iptables.NFT):    iptablesMode(iptables.NFT),
}

const (
	// modeIPTables is the variant of iptables that this machine uses.
	modeIPTables = "iptables"

	iptablesPrefix = modeIPTables + "-"
)

// iptablesVariant is a mode's variant of iptables; ok is false where it is none.
func iptablesVariant(mode string) (v iptables.Variant, ok bool) {
	rest, ok := strings.CutPrefix(mode, iptablesPrefix)
	return iptables.Variant(rest), ok
}

// resolve finds out which variant is meant by iptables. In the namespaces in which it is
// measured there would be nothing to go by.
func (o *SyncOptions) resolve() error {
	if o.Mode != modeIPTables {
		return nil
	}
	v, err := iptables.Detect(context.Background(), 0)
	o.Mode = iptablesPrefix + string(v)
	return err
}

// iptablesMode is iptables mode by way of one of the programs of that name.
func iptablesMode(v iptables.Variant) mode {
	open := func(c dataplane.Config) (dataplane.Dataplane, error) {
		return iptables.New(context.Background(), c, iptables.Options{Variant: v})
	}
	return mode{open: open, probe: func() error {
		b, err := open(backendConfig())
		if err == nil {
			err = b.Close()
		}
		return err
	}}
}

// Modes lists the values of SyncOptions.Mode.
func Modes() []string {
	all := append(slices.Collect(maps.Keys(modes)), modeIPTables)
	slices.Sort(all)
	return all
}

// probeNFTables asks nf_tables for its generation.
func probeNFTables() (err error) {
	conn, err := nfnl.Dial(0)
	if err == nil {
		defer func() { err = errors.Join(err, conn.Close()) }()
		_, err = conn.Generation()
	}
	return explainNFTables(err)
}

// explainNFTables says what an error of the first request means. nfnetlink
// answers EINVAL for a subsystem that it does not have.
func explainNFTables(err error) error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, unix.EPROTONOSUPPORT), errors.Is(err, unix.EINVAL), errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("this kernel has no nf_tables (CONFIG_NF_TABLES): %w", err)
	}
	return fmt.Errorf("nf_tables: %w", err)
}

// backendConfig is kube-proxy's default.
func backendConfig() dataplane.Config {
	return dataplane.Config{MasqueradeBit: dataplane.DefaultMasqueradeBit}
}

// stateConfig is as on a node whose cluster's range of pod addresses is known.
func (c *cluster) stateConfig() desired.Config {
	config := desired.Config{NodeName: localNode}
	for _, f := range []family{ipv4, ipv6} {
		config.DetectLocal.CIDRs = append(config.DetectLocal.CIDRs, netip.PrefixFrom(f.pods.Addr(), f.pods.Bits()))
	}
	return config
}
