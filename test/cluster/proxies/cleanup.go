// SPDX-License-Identifier: Apache-2.0

package proxies

import (
	"context"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// Cleanup removes all that a proxy has programmed on a node, by the command that it has
// for this. No proxy of its own may be running there; with Slipstream, another one may.
// Under kube-proxy's name, Slipstream removes what kube-proxy has programmed too.
func Cleanup(ctx context.Context, kind Kind, node *lab.Node, o Options) error {
	binary, err := o.binary(ctx, kind)
	if err != nil {
		return err
	}
	args := []string{"--cleanup"}
	if kind == Slipstream && !o.AsKubeProxy {
		args = []string{"cleanup", "--keep-kube-proxy"}
	}
	_, err = node.Run(ctx, binary, args...)
	return err
}

// ofKubelet are chains that kubelet has, too. kube-proxy, which makes the first one,
// leaves it.
var ofKubelet = []string{"KUBE-FIREWALL", "KUBE-IPTABLES-HINT", "KUBE-KUBELET-CANARY", "KUBE-MARK-DROP"}

// Leftovers lists what kube-proxy, in any mode, has on a node, by its names for tables
// and chains: nothing where it has been removed.
func Leftovers(ctx context.Context, node *lab.Node) ([]string, error) {
	out, err := node.Run(ctx, "nft", "list", "ruleset")
	if err != nil {
		return nil, err
	}
	var found []string
	table := ""
	for line := range strings.Lines(string(out)) {
		words := strings.Fields(line)
		if len(words) < 2 {
			continue
		}
		switch {
		case words[0] == "table":
			table = strings.Join(words[1:len(words)-1], " ")
			if strings.HasSuffix(table, " kube-proxy") {
				found = append(found, "table "+table)
			}
		case words[0] == "chain" && strings.HasPrefix(words[1], "KUBE-") && !slices.Contains(ofKubelet, words[1]):
			found = append(found, "chain "+table+" "+words[1])
		}
	}
	return found, nil
}
