// SPDX-License-Identifier: Apache-2.0

package kerneltest

import (
	"errors"
	"fmt"

	"github.com/google/nftables"
)

// NFTables is nf_tables with tables of family inet, programmed over netlink. It needs
// CONFIG_NF_TABLES (Linux 3.13) and CONFIG_NF_TABLES_INET (Linux 3.14).
var NFTables = define("nf_tables", probeNFTables, NetNS)

func probeNFTables() error {
	return withProbeTable(func(*nftables.Conn, *nftables.Table) {})
}

const probeTable = "kerneltest-probe"

// withProbeTable makes a table of family inet in a network namespace of its own,
// together with whatever fill adds to the transaction, and deletes it again.
func withProbeTable(fill func(*nftables.Conn, *nftables.Table)) error {
	return inNewNetNS(func() error {
		conn, err := nftables.New(nftables.AsLasting())
		if err != nil {
			return fmt.Errorf("netlink: %w", err)
		}
		defer func() { _ = conn.CloseLasting() }()

		table := conn.AddTable(&nftables.Table{Family: nftables.TableFamilyINet, Name: probeTable})
		fill(conn, table)
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("add: %w", err)
		}
		if there, err := hasProbeTable(conn); err != nil {
			return err
		} else if !there {
			return errors.New("a table that was added is not listed")
		}
		conn.DelTable(table)
		if err := conn.Flush(); err != nil {
			return fmt.Errorf("delete: %w", err)
		}
		if there, err := hasProbeTable(conn); err != nil {
			return err
		} else if there {
			return errors.New("a table that was deleted is listed still")
		}
		return nil
	})
}

func hasProbeTable(conn *nftables.Conn) (bool, error) {
	tables, err := conn.ListTablesOfFamily(nftables.TableFamilyINet)
	if err != nil {
		return false, fmt.Errorf("list: %w", err)
	}
	for _, t := range tables {
		if t.Name == probeTable {
			return true, nil
		}
	}
	return false, nil
}
