// SPDX-License-Identifier: Apache-2.0

package config

import (
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	kubeproxy "k8s.io/kube-proxy/config/v1alpha1"
	netutils "k8s.io/utils/net"
)

// ParseRange parses a range of addresses in the notations that kube-proxy accepts.
// Bits beyond its length are dropped.
func ParseRange(text string) (p netip.Prefix, ok bool) {
	_, ipnet, err := netutils.ParseCIDRSloppy(text)
	if err != nil {
		return p, false
	}
	addr, _ := netip.AddrFromSlice(ipnet.IP)
	bits, _ := ipnet.Mask.Size()
	return netip.PrefixFrom(addr, bits), !addr.Is4In6()
}

// ParseAddr parses an IP address in the notations that kube-proxy accepts: IPv4 with
// leading zeros and IPv4-mapped IPv6 addresses are IPv4.
func ParseAddr(text string) (ip netip.Addr, ok bool) {
	ip, ok = netip.AddrFromSlice(netutils.ParseIPSloppy(text))
	return ip.Unmap(), ok
}

// NodeIP returns bindAddress of a valid configuration, which replaces the Node object's
// address of the same family. It returns the zero Addr if bindAddress is unspecified
// (0.0.0.0 or ::), so that the Node object's addresses are used.
func (c *Config) NodeIP() netip.Addr {
	ip, _ := ParseAddr(c.KubeProxy.BindAddress)
	if ip.IsUnspecified() {
		return netip.Addr{}
	}
	return ip
}

const notRange = "must be a range of addresses such as 10.244.0.0/16 or fd00:244::/32"

// Keywords of nodePortAddresses. They may be combined with each other and with ranges.
const (
	Primary   = "primary"   // the Node object's addresses
	Localhost = "localhost" // 127.0.0.0/8 and ::1/128
	All       = "all"       // 0.0.0.0/0 and ::/0
)

// keywordRanges are the ranges that a keyword of nodePortAddresses stands for.
var keywordRanges = map[string][]netip.Prefix{
	Primary:   nil,
	Localhost: {netip.MustParsePrefix("127.0.0.0/8"), netip.MustParsePrefix("::1/128")},
	All:       {netip.MustParsePrefix("0.0.0.0/0"), netip.MustParsePrefix("::/0")},
}

// NodePortRanges returns the ranges of a valid nodePortAddresses, with keywords replaced
// by the ranges that they stand for, and whether it has the keyword [Primary].
func (c *Config) NodePortRanges() (ranges []netip.Prefix, primary bool) {
	for _, text := range c.KubeProxy.NodePortAddresses {
		if more, ok := keywordRanges[text]; ok {
			ranges, primary = append(ranges, more...), primary || text == Primary
			continue
		}
		p, _ := ParseRange(text)
		ranges = append(ranges, p)
	}
	return ranges, primary
}

// ValidateNodePortAddresses checks nodePortAddresses alone: ranges and keywords, of which
// each may occur once.
func (c *Config) ValidateNodePortAddresses() (errs field.ErrorList) {
	path, all := field.NewPath("nodePortAddresses"), c.KubeProxy.NodePortAddresses
	for i, text := range all {
		if _, ok := keywordRanges[text]; ok {
			if slices.Contains(all[:i], text) {
				errs = append(errs, field.Duplicate(path.Index(i), text))
			}
			continue
		}
		if _, ok := ParseRange(text); !ok {
			errs = append(errs, field.Invalid(path.Index(i), text, notRange+", or "+Primary+", "+Localhost+" or "+All))
		}
	}
	return errs
}

// ParseExcludeCIDRs parses the address ranges of IPVS virtual servers that do not belong
// to kube-proxy, and returns the errors in them.
func ParseExcludeCIDRs(path *field.Path, texts []string) (all []netip.Prefix, errs field.ErrorList) {
	for i, text := range texts {
		p, ok := ParseRange(text)
		if !ok {
			errs = append(errs, field.Invalid(path.Index(i), text, notRange))
			continue
		}
		all = append(all, p)
	}
	return all, errs
}

// ExcludeCIDRs returns ipvs.excludeCIDRs of a valid configuration.
func (c *Config) ExcludeCIDRs() []netip.Prefix {
	all, _ := ParseExcludeCIDRs(nil, c.KubeProxy.IPVS.ExcludeCIDRs)
	return all
}

// validateHostPort accepts an IP address with a port, or the empty string.
func validateHostPort(path *field.Path, text string) field.ErrorList {
	if text == "" {
		return nil
	}
	host, port, err := net.SplitHostPort(text)
	n, notNumber := strconv.Atoi(port)
	switch {
	case err != nil:
		return field.ErrorList{field.Invalid(path, text, "must be an IP address and a port, such as 127.0.0.1:10249")}
	case netutils.ParseIPSloppy(host) == nil:
		return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("%q is not an IP address", host))}
	case notNumber != nil || n < 1 || n > 65535:
		return field.ErrorList{field.Invalid(path, text, fmt.Sprintf("%q is not a port from 1 to 65535", port))}
	}
	return nil
}

// ClusterCIDRs returns the valid ranges of clusterCIDR.
func ClusterCIDRs(c *kubeproxy.KubeProxyConfiguration) (all []netip.Prefix) {
	for _, text := range strings.Split(c.ClusterCIDR, ",") {
		if p, ok := ParseRange(text); ok {
			all = append(all, p)
		}
	}
	return all
}
