// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"embed"
	"errors"
	"structs"

	"github.com/cilium/ebpf"
)

//go:embed program_bpf??.o
var compiled embed.FS

// The structures as the program has them.

type programAddress struct {
	_    structs.HostLayout
	Ip   [4]uint32
	Port uint16
	Zero uint16
}

type programPool struct {
	_      structs.HostLayout
	Count  uint32
	InTurn uint32
	Next   uint32
}

type programSlot struct {
	_      structs.HostLayout
	Pool   uint32
	Number uint32
}

// programObjects are the programs, maps and variables in the kernel.
type programObjects struct {
	Connections   *ebpf.Map `ebpf:"connections"`
	Endpoints     *ebpf.Map `ebpf:"endpoints"`
	Frontends     *ebpf.Map `ebpf:"frontends"`
	Lease         *ebpf.Map `ebpf:"lease"`
	Namespaces    *ebpf.Map `ebpf:"namespaces"`
	NodeAddresses *ebpf.Map `ebpf:"node_addresses"`
	Peers         *ebpf.Map `ebpf:"peers"`
	Pools         *ebpf.Map `ebpf:"pools"`

	Connect4     *ebpf.Program `ebpf:"connect4"`
	Connect6     *ebpf.Program `ebpf:"connect6"`
	Getpeername4 *ebpf.Program `ebpf:"getpeername4"`
	Getpeername6 *ebpf.Program `ebpf:"getpeername6"`
}

func (o *programObjects) Close() error {
	return errors.Join(o.Connections.Close(), o.Endpoints.Close(), o.Frontends.Close(), o.Lease.Close(), o.Namespaces.Close(),
		o.NodeAddresses.Close(), o.Peers.Close(), o.Pools.Close(), o.Connect4.Close(), o.Connect6.Close(), o.Getpeername4.Close(), o.Getpeername6.Close())
}
