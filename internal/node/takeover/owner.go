// SPDX-License-Identifier: Apache-2.0

package takeover

// Owner is somebody who has chains of iptables.
type Owner struct {
	Name string // for people

	// Table is the name of the owner's own tables of nftables; empty for none.
	Table string

	// Chain says whether a chain is the owner's, by its name, and Entered whether it
	// is one to which the owner jumps from chains that iptables has by itself.
	Chain, Entered func(chain string) bool
}

// kubeProxy is whose chains there may be where Slipstream starts.
var kubeProxy = Owner{
	Name:    "kube-proxy",
	Table:   "kube-proxy",
	Chain:   isKubeProxy,
	Entered: func(chain string) bool { return entered[chain] },
}

// jump says whether a rule that leads from one chain to another is the owner's own.
func (o *Owner) jump(from, to string) bool { return builtin[from] && o.Entered(to) }
