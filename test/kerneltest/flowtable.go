// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"github.com/google/nftables"
	"github.com/google/nftables/expr"
	"golang.org/x/sys/unix"
)

// Flowtable is nf_tables flowtables of family inet and the rules that put connections
// into them and count these. It needs CONFIG_NF_FLOW_TABLE_INET and
// CONFIG_NFT_FLOW_OFFLOAD (both Linux 4.16), and before Linux 6.2 CONFIG_NFT_OBJREF.
var Flowtable = define("flowtables", probeFlowtable, NFTables)

func probeFlowtable() error {
	return withProbeTable(func(conn *nftables.Conn, table *nftables.Table) {
		flowtable := conn.AddFlowtable(&nftables.Flowtable{
			Table:    table,
			Name:     "probe",
			Hooknum:  nftables.FlowtableHookIngress,
			Priority: nftables.FlowtablePriorityRef(0),
			Devices:  []string{"lo"},
		})
		chain := conn.AddChain(&nftables.Chain{
			Table:    table,
			Name:     "forward",
			Type:     nftables.ChainTypeFilter,
			Hooknum:  nftables.ChainHookForward,
			Priority: nftables.ChainPriorityFilter,
		})
		counter := conn.AddObj(&nftables.CounterObj{Table: table, Name: "probe"}).(*nftables.CounterObj)
		conn.AddRule(&nftables.Rule{
			Table: table,
			Chain: chain,
			Exprs: []expr.Any{&expr.FlowOffload{Name: flowtable.Name}, &expr.Objref{Type: unix.NFT_OBJECT_COUNTER, Name: counter.Name}},
		})
	})
}
