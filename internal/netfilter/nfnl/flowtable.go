// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"slices"

	"golang.org/x/sys/unix"
)

// Messages and attributes of flowtables that package unix lacks (enum
// nf_tables_msg_types, nft_flowtable_attributes, nft_flowtable_hook_attributes,
// nft_devices_attributes).
const (
	msgNewFlowtable = unix.NFT_MSG_NEWFLOWTABLE
	msgGetFlowtable = unix.NFT_MSG_NEWFLOWTABLE + 1
	msgDelFlowtable = unix.NFT_MSG_NEWFLOWTABLE + 2

	nftaFlowtableTable  = 1
	nftaFlowtableName   = 2
	nftaFlowtableHook   = 3
	nftaFlowtableHandle = 5
	nftaFlowtableFlags  = 7 // Linux 5.7

	nftaFlowtableHookNum      = 1
	nftaFlowtableHookPriority = 2
	nftaFlowtableHookDevs     = 3

	nftaDeviceName   = 1
	nftaDevicePrefix = 2 // Linux 6.17, and later versions of 6.16

	netdevIngress = 0 // NF_NETDEV_INGRESS
)

// Flags of flowtables.
const (
	// FlowtableHardware has flows handed to the devices' drivers, all of
	// which must be able to (else EOPNOTSUPP). It cannot be changed.
	FlowtableHardware uint32 = 0x1 // NFT_FLOWTABLE_HW_OFFLOAD, Linux 5.5
	// FlowtableCounter keeps the counters of conntrack entries going.
	FlowtableCounter uint32 = 0x2 // NFT_FLOWTABLE_COUNTER, Linux 5.7
)

// MaxFlowtableDevices is how many devices one message may name: the kernel
// refuses the 256th with EFBIG (NFT_NETDEVICE_MAX).
const MaxFlowtableDevices = 255

// Flowtable is a flowtable with its hook, which is always the devices' ingress.
type Flowtable struct {
	Name     string
	Priority int32
	Flags    uint32
	Devices  []Device
}

// Device is the name of a network device, or, where the kernel has such
// wildcards (else EINVAL), how its name begins.
type Device struct {
	Name   string
	Prefix bool
}

// AddFlowtable makes sure that a flowtable exists and has the devices, of which
// there may be any number; those that it has already are left alone. Up to Linux
// 6.15 a device that does not exist is an error (ENOENT).
func (b *Batch) AddFlowtable(t Table, f *Flowtable) {
	devices := f.Devices
	for first := true; first || len(devices) > 0; first = false {
		n := min(len(devices), MaxFlowtableDevices)
		b.begin(msgNewFlowtable, unix.NLM_F_CREATE, t.Family)
		b.buf.string(nftaFlowtableTable, t.Name)
		b.buf.string(nftaFlowtableName, f.Name)
		b.flowtableHook(f.Priority, devices[:n])
		b.buf.be32(nftaFlowtableFlags, f.Flags)
		b.end()
		devices = devices[n:]
	}
}

// DeleteFlowtable deletes a flowtable that no rule uses any more; it must exist.
// Its flows go back to the slow path, soon after the commit.
func (b *Batch) DeleteFlowtable(t Table, name string) {
	b.begin(msgDelFlowtable, 0, t.Family)
	b.buf.string(nftaFlowtableTable, t.Name)
	b.buf.string(nftaFlowtableName, name)
	b.end()
}

// DeleteDevices takes devices, which must be in it (else ENOENT), out of a
// flowtable. It does nothing to flows that there are.
func (b *Batch) DeleteDevices(t Table, f *Flowtable) {
	for devices := range slices.Chunk(f.Devices, MaxFlowtableDevices) {
		b.begin(msgDelFlowtable, 0, t.Family)
		b.buf.string(nftaFlowtableTable, t.Name)
		b.buf.string(nftaFlowtableName, f.Name)
		b.flowtableHook(f.Priority, devices)
		b.end()
	}
}

func (b *Batch) flowtableHook(priority int32, devices []Device) {
	hook := b.buf.open(nftaFlowtableHook)
	b.buf.be32(nftaFlowtableHookNum, netdevIngress)
	b.buf.be32(nftaFlowtableHookPriority, uint32(priority))
	if len(devices) > 0 {
		b.devices(nftaFlowtableHookDevs, devices)
	}
	b.buf.close(hook)
}

// devices writes a list of devices.
func (b *Batch) devices(typ uint16, devices []Device) {
	list := b.buf.open(typ)
	for _, d := range devices {
		if d.Prefix {
			b.buf.string(nftaDevicePrefix, d.Name)
		} else {
			b.buf.string(nftaDeviceName, d.Name)
		}
	}
	b.buf.close(list)
}

// FlowtableInfo is a flowtable as the kernel has it.
type FlowtableInfo struct {
	Flowtable
	Handle uint64 // unique within the table, for ever
}

// Flowtables calls visit with every flowtable of a table. The kernel leaves out
// one whose devices do not fit into the 32 KiB of an answer, some 1,600 of them.
func (c *Conn) Flowtables(t Table, visit func(FlowtableInfo)) error {
	// The first answer on a socket is smaller: the kernel has not seen yet how
	// much is read at once.
	if _, err := c.Generation(); err != nil {
		return err
	}
	var a attrs
	a.string(nftaFlowtableTable, t.Name) // the kernel filters by it
	return c.request(msgGetFlowtable, unix.NLM_F_DUMP, uint8(t.Family), a, func(body []byte) {
		f := FlowtableInfo{Handle: be64(findAttr(body, nftaFlowtableHandle))}
		f.Name = cString(findAttr(body, nftaFlowtableName))
		f.Flags = be32(findAttr(body, nftaFlowtableFlags))
		hook := findAttr(body, nftaFlowtableHook)
		f.Priority = int32(be32(findAttr(hook, nftaFlowtableHookPriority)))
		eachAttr(findAttr(hook, nftaFlowtableHookDevs), func(typ uint16, name []byte) bool {
			f.Devices = append(f.Devices, Device{Name: cString(name), Prefix: typ == nftaDevicePrefix})
			return true
		})
		visit(f)
	})
}
