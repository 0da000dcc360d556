// SPDX-License-Identifier: Apache-2.0

package ebpf

import (
	"embed"
	"errors"
	"structs"
	"unsafe"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/bpffs"
)

//go:embed program_bpf??.o
var compiled embed.FS

func loadProgram() (*ebpf.CollectionSpec, error) { return bpffs.Program(compiled) }

// Asked is, in the upper half of a packet's priority, the class by which rules ask to offload its connection: KEP-4963's
// number.
const Asked = 4963 << 16

// The structures as the program has them.

type programFlow struct {
	_             structs.HostLayout
	From          programTuple
	To            programTuple
	In            uint32
	Out           uint32
	NexthopFamily uint32
	Nexthop       [16]uint8
	Macs          [12]uint8
	Mtu           uint16
	Peer          uint8
	Reply         uint8
	Scale         uint8
	Waits         uint8
	Dscp          uint8
	Zero          uint8
	Seal          uint64
	Checked       uint64
	Packets       uint64
	Bytes         uint64
	Ack           uint32
	Limit         uint32
	Heard         uint32
	Added         uint32
	Seen          uint8
	Zero2         [7]uint8
}

// seal sets the seal, as the program's function sealed computes it.
func (f *programFlow) seal() {
	const size, factor = unsafe.Offsetof(f.Seal) / 8, 0x9e3779b97f4a7c15
	var sum [4]uint64
	for i, word := range (*[size]uint64)(unsafe.Pointer(f)) {
		sum[i%4] = (sum[i%4] + word) * factor
	}
	f.Seal = ((sum[0]*factor+sum[1])*factor+sum[2])*factor + sum[3]
}

type programTuple struct {
	_        structs.HostLayout
	Src      [16]uint8
	Dst      [16]uint8
	Ports    [4]uint8
	Protocol uint8
	Ipv6     uint8
	Zero     [2]uint8
}

type programInterface struct {
	_           structs.HostLayout
	Connections uint32
	Peer        uint8
	Zero        [3]uint8
}

// programObjects are the programs, maps and variables in the kernel.
type programObjects struct {
	Flows      *ebpf.Map `ebpf:"flows"`
	Interfaces *ebpf.Map `ebpf:"interfaces"`
	Refusals   *ebpf.Map `ebpf:"refusals"`
	Waiting    *ebpf.Map `ebpf:"waiting"`

	Forward *ebpf.Program `ebpf:"forward"`
	Guard   *ebpf.Program `ebpf:"guard"`
	Learn   *ebpf.Program `ebpf:"learn"`

	Added      *ebpf.Variable `ebpf:"added"`
	Lease      *ebpf.Variable `ebpf:"lease"`
	Refused    *ebpf.Variable `ebpf:"refused"`
	TcpTimeout *ebpf.Variable `ebpf:"tcp_timeout"`
	UdpTimeout *ebpf.Variable `ebpf:"udp_timeout"`
}

func (o *programObjects) Close() error {
	return errors.Join(o.Flows.Close(), o.Interfaces.Close(), o.Refusals.Close(), o.Waiting.Close(),
		o.Forward.Close(), o.Guard.Close(), o.Learn.Close())
}
