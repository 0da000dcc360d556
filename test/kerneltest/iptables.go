// SPDX-License-Identifier: Apache-2.0

package kerneltest

// IPTablesLegacy is iptables by way of x_tables, both address families: the commands
// iptables-legacy and ip6tables-legacy (Debian's package iptables), and in the kernel
// CONFIG_IP_NF_NAT, CONFIG_IP6_NF_NAT, CONFIG_NETFILTER_XT_MATCH_STATISTIC and
// CONFIG_NETFILTER_XT_TARGET_MASQUERADE (Linux 5.2; before that one per family). Since
// Linux 6.17 they depend on CONFIG_NETFILTER_XTABLES_LEGACY, which may be off.
var IPTablesLegacy = define("iptables-legacy", func() error { return probeIPTables("legacy") }, NetNS)

// IPTablesNFT is iptables by way of nf_tables, both address families: the commands
// iptables-nft and ip6tables-nft (Debian's package iptables), and in the kernel what
// [NFTables] needs, the extensions named at [IPTablesLegacy], and CONFIG_NFT_COMPAT
// (Linux 3.13) to reach them.
var IPTablesNFT = define("iptables-nft", func() error { return probeIPTables("nft") }, NFTables)

// probeIPTables adds rules of the kind that kube-proxy's iptables mode has.
func probeIPTables(variant string) error {
	return inNewNetNS(func() error {
		for _, command := range []string{"iptables-", "ip6tables-"} {
			for _, rule := range []string{
				"-N PROBE",
				"-A PROBE -m statistic --mode random --probability 0.5 -j RETURN",
				"-A PROBE -m comment --comment probe -j MASQUERADE",
				"-A POSTROUTING -j PROBE",
			} {
				if err := runCommand(command + variant + " -w 10 -t nat " + rule); err != nil {
					return err
				}
			}
		}
		return nil
	})
}
