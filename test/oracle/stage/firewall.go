// SPDX-License-Identifier: Apache-2.0

package stage

import "context"

// Firewall has n1 let in and forward nothing but what some rule accepts, by one variant
// of the iptables commands ("legacy" or "nft"). The rules that it adds itself accept, to
// n1, only answers, what n1 sends to itself, and what IPv6 cannot do without.
func (s *Stage) Firewall(ctx context.Context, variant string) error {
	for _, command := range []string{"iptables-" + variant, "ip6tables-" + variant} {
		for _, args := range [][]string{
			{"-A", "INPUT", "-m", "conntrack", "--ctstate", "RELATED,ESTABLISHED", "-j", "ACCEPT"},
			{"-A", "INPUT", "-i", "lo", "-j", "ACCEPT"},
			{"-A", "INPUT", "-p", "ipv6-icmp", "-j", "ACCEPT"},
			{"-P", "INPUT", "DROP"},
			{"-P", "FORWARD", "DROP"},
		} {
			if _, err := s.N1.Run(ctx, command, append([]string{"-w", "60"}, args...)...); err != nil {
				return err
			}
		}
	}
	return nil
}
