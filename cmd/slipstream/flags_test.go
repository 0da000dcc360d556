// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"reflect"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/spf13/cobra"
)

func ranges(texts ...string) (all []netip.Prefix) {
	for _, t := range texts {
		all = append(all, netip.MustParsePrefix(t))
	}
	return all
}

// parse parses arguments as flags of "slipstream run".
func parse(t *testing.T, args string) (*config.Config, []config.Note, error) {
	t.Helper()
	var o runFlags
	cmd := &cobra.Command{}
	o.add(cmd)
	if err := cmd.ParseFlags(strings.Fields(args)); err != nil {
		return nil, nil, err
	}
	return o.complete(cmd.Flags())
}

// parsed parses arguments that are good.
func parsed(t *testing.T, args string) *config.Config {
	t.Helper()
	c, _, err := parse(t, args)
	if err != nil {
		t.Fatalf("%s: %v", args, err)
	}
	return c
}

func TestNodePortFlags(t *testing.T) {
	for args, want := range map[string]desired.NodePortAddresses{
		"":                               {Primary: true},
		"--nodeport-addresses primary":   {Primary: true},
		"--nodeport-addresses=":          {Primary: true},
		"--nodeport-addresses 0.0.0.0/0": {CIDRs: ranges("0.0.0.0/0")},
		"--nodeport-addresses 192.0.2.7/24,2001:db8::/64":                        {CIDRs: ranges("192.0.2.0/24", "2001:db8::/64")},
		"--nodeport-addresses 192.0.2.0/24 --nodeport-addresses 198.51.100.0/24": {CIDRs: ranges("192.0.2.0/24", "198.51.100.0/24")},
		"--nodeport-addresses 127.0.0.0/8 --iptables-localhost-nodeports=false":  {CIDRs: ranges("127.0.0.0/8")},
		"--nodeport-addresses localhost,primary":                                 {Primary: true, CIDRs: ranges("127.0.0.0/8", "::1/128")},
		"--nodeport-addresses all,primary,192.0.2.0/24":                          {Primary: true, CIDRs: ranges("0.0.0.0/0", "::/0", "192.0.2.0/24")},
		"--nodeport-addresses localhost --proxy-mode iptables":                   {Loopback: true, CIDRs: ranges("127.0.0.0/8", "::1/128")},
		"--proxy-mode iptables":                                                  {Loopback: true},
	} {
		c := parsed(t, "--manifests /m "+args)
		if got := nodePorts(c); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v; want %+v", args, got, want)
		}
	}
}

func TestDetectLocalFlags(t *testing.T) {
	for args, want := range map[string]desired.DetectLocal{
		"": {},
		"--cluster-cidr 10.244.0.7/16,fd00:244::/32":                                          {CIDRs: ranges("10.244.0.0/16", "fd00:244::/32")},
		"--detect-local-mode NodeCIDR --cluster-cidr 10.244.0.0/16":                           {Mode: desired.ByNodeCIDR},
		"--detect-local-mode BridgeInterface --pod-bridge-interface cni0":                     {Mode: desired.ByBridgeInterface, Interface: "cni0"},
		"--detect-local-mode InterfaceNamePrefix --pod-interface-name-prefix fifteen-bytes-x": {Mode: desired.ByInterfaceNamePrefix, Interface: "fifteen-bytes-x"},
	} {
		if got := detectLocal(parsed(t, "--manifests /m "+args)); !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v; want %+v", args, got, want)
		}
	}
}
