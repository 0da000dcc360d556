// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// Messages and attributes of flowtables that package unix lacks (enum nf_tables_msg_types, nft_flowtable_attributes,
// nft_flowtable_hook_attributes, nft_devices_attributes).
const (
	msgNewFlowtable = unix.NFT_MSG_NEWFLOWTABLE
	msgGetFlowtable = unix.NFT_MSG_NEWFLOWTABLE + 1
	msgDelFlowtable = unix.NFT_MSG_NEWFLOWTABLE + 2

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
	// FlowtableHardware offloads flows to the devices, which must all support it
	// (else EOPNOTSUPP). It cannot be changed.
	FlowtableHardware uint32 = 0x1 // NFT_FLOWTABLE_HW_OFFLOAD, Linux 5.5
	// FlowtableCounter updates the counters of conntrack entries.
	FlowtableCounter uint32 = 0x2 // NFT_FLOWTABLE_COUNTER, Linux 5.7
)

// MaxFlowtableDevices is the maximum number of devices in one message. The kernel refuses
// more with EFBIG (NFT_NETDEVICE_MAX).
const MaxFlowtableDevices = 255

// Flowtable is a flowtable. Its hook is the devices' ingress.
type Flowtable struct {
	Name     string
	Priority int32
	Flags    uint32
	Devices  []Device
	Handle   uint64 // as read: unique within the table, and never reused
}

// Device is the name of a network device, or a prefix of names if the kernel supports it (else EINVAL).
type Device struct {
	Name   string
	Prefix bool
}

// Is reports whether an interface of that name is the device, or has the prefix.
func (d Device) Is(name string) bool {
	return d.Name == name || d.Prefix && strings.HasPrefix(name, d.Name)
}

// AddFlowtable makes sure that a flowtable exists and has the devices, in any number. Other devices of an existing
// flowtable are not removed. Up to Linux 6.15, a device that does not exist is an error (ENOENT).
func (b *Batch) AddFlowtable(t Table, f *Flowtable) {
	devices := f.Devices
	for first := true; first || len(devices) > 0; first = false {
		n := min(len(devices), MaxFlowtableDevices)
		b.begin(msgNewFlowtable, unix.NLM_F_CREATE, t, f.Name)
		b.flowtableHook(f.Priority, devices[:n])
		b.buf.be32(nftaFlowtableFlags, f.Flags)
		b.end()
		devices = devices[n:]
	}
}

// DeleteFlowtable deletes a flowtable, which must exist and must not be used by a rule. Its
// flows return to the slow path soon after the commit.
func (b *Batch) DeleteFlowtable(t Table, name string) { b.message(msgDelFlowtable, 0, t, name) }

// DeleteDevices removes devices, which must exist (else ENOENT), from a flowtable. It does not affect existing flows.
func (b *Batch) DeleteDevices(t Table, f *Flowtable) {
	for devices := range slices.Chunk(f.Devices, MaxFlowtableDevices) {
		b.begin(msgDelFlowtable, 0, t, f.Name)
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

// Flowtables returns the flowtables of a table. The kernel omits a flowtable if its devices do
// not fit into an answer of 32 KiB, which is about 1,600 devices.
func (c *Conn) Flowtables(t Table) ([]Flowtable, error) {
	// The size of an answer depends on the size of previous reads, so the first answer on a socket would be smaller.
	if err := c.request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil, func([]byte) {}); err != nil {
		return nil, err
	}
	return list(c, msgGetFlowtable, t, "", func(body []byte) Flowtable {
		hook := Attr(body, nftaFlowtableHook)
		return Flowtable{
			Name:     cString(Attr(body, nftaFlowtableName)),
			Priority: int32(be32(Attr(hook, nftaFlowtableHookPriority))),
			Flags:    be32(Attr(body, nftaFlowtableFlags)),
			Handle:   be64(Attr(body, nftaFlowtableHandle)),
			Devices:  parseDevices(Attr(hook, nftaFlowtableHookDevs)),
		}
	})
}

func parseDevices(list []byte) (all []Device) {
	for typ, name := range Attributes(list) {
		all = append(all, Device{Name: cString(name), Prefix: typ == nftaDevicePrefix})
	}
	return all
}
