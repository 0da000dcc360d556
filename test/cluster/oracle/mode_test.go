// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// mode is a way for both proxies to program the kernel.
type mode struct {
	name    string
	proxy   string           // the mode of both proxies, of package cluster
	variant iptables.Variant // of the iptables commands; "" in nftables mode
	share   int              // of the clusters, beside other modes
	needs   []kerneltest.Feature
}

var allModes = []mode{
	{"nftables", NFTables, "", 2, []kerneltest.Feature{kerneltest.NFTables}},
	{"iptables-legacy", IPTables, iptables.Legacy, 1, []kerneltest.Feature{kerneltest.IPTablesLegacy, kerneltest.IPSet}},
	{"iptables-nft", IPTables, iptables.NFT, 1, []kerneltest.Feature{kerneltest.IPTablesNFT, kerneltest.IPSet}},
	ipvsMode,
}

// ipvsMode is on request only: few kernels have IPVS.
var ipvsMode = mode{"ipvs", IPVS, iptables.NFT, 1, []kerneltest.Feature{kerneltest.IPVS, kerneltest.IPTablesNFT, kerneltest.IPSet}}

// cluster makes up a cluster to be looked at in this mode.
func (m mode) cluster(seed uint64) *Cluster {
	c := RandomCluster(seed)
	switch m.proxy {
	case IPTables:
		c.ForIPTables(string(m.variant))
	case IPVS:
		c.ForIPVS()
	}
	return c
}

// modeOf is the mode in which a cluster is looked at.
func modeOf(c *Cluster) mode {
	return allModes[slices.IndexFunc(allModes, func(m mode) bool {
		return m.proxy == c.Settings.Mode && string(m.variant) == c.Settings.Variant
	})]
}

// selectModes are the modes that a list names.
func selectModes(list string) (selected []mode, err error) {
	if list == "all" {
		return allModes[:len(allModes)-1], nil
	}
	for _, name := range strings.Split(list, ",") {
		i := slices.IndexFunc(allModes, func(m mode) bool { return m.name == name })
		if i < 0 {
			return nil, fmt.Errorf("-mode: no such mode: %q", name)
		}
		selected = append(selected, allModes[i])
	}
	return selected, nil
}

// share says how many of n clusters each of the modes gets, in proportion to its share.
func share(n int, modes []mode) (of []int) {
	all := 0
	for _, m := range modes {
		all += m.share
	}
	before, given := 0, 0
	for _, m := range modes {
		before += m.share
		next := (n*before + all - 1) / all
		of, given = append(of, next-given), next
	}
	return of
}

func TestShare(t *testing.T) {
	for _, tc := range []struct {
		n    int
		list string
		want []int
	}{
		{12, "all", []int{6, 3, 3}},
		{1, "all", []int{1, 0, 0}},
		{5, "all", []int{3, 1, 1}},
		{7, "iptables-nft", []int{7}},
		{5, "iptables-nft,iptables-legacy", []int{3, 2}},
	} {
		modes, err := selectModes(tc.list)
		if err != nil {
			t.Error(err)
		}
		if got := share(tc.n, modes); !slices.Equal(got, tc.want) {
			t.Errorf("%d clusters in %s: %v, want %v", tc.n, tc.list, got, tc.want)
		}
	}
	if _, err := selectModes("iptables"); err == nil {
		t.Error("there is a mode of no variant")
	}
}
