// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"errors"
	"net"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// namespace returns the inode of the network namespace of a client, which the kernel gives the accepted socket too, and the
// number by which interfaces here name it. The number is negative if none does, as with ipvlan, and in the node's own namespace;
// a process in a pod can make itself such a namespace, and have any address there.
func namespace(c net.Conn) (inode uint64, id int, err error) {
	raw, err := c.(*net.UnixConn).SyscallConn()
	if err != nil {
		return 0, 0, err
	}
	file := -1
	var failed error
	err = raw.Control(func(fd uintptr) { file, failed = unix.IoctlRetInt(int(fd), unix.SIOCGSKNS) }) // Linux 4.9
	if err = errors.Join(err, failed); err != nil {
		return 0, 0, err
	}
	defer unix.Close(file)
	var of, own unix.Stat_t
	if err := errors.Join(unix.Fstat(file, &of), unix.Stat("/proc/thread-self/ns/net", &own)); err != nil || of.Ino == own.Ino {
		return of.Ino, -1, err
	}
	id, err = netlink.GetNetNsIdByFd(file)
	return of.Ino, id, err
}

// addresses returns the addresses in the network namespace with a number. It does not enter that, which needs more rights.
func addresses(id int) (all []netip.Addr, err error) {
	s, err := nl.GetNetlinkSocketAt(netns.None(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	defer s.Close()
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return nil, err
	}
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		r := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
		r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: {Socket: s}}
		r.AddData(nl.NewIfAddrmsg(family))
		const targetNamespace = 10 // IFA_TARGET_NETNSID (Linux 4.20)
		r.AddData(nl.NewRtAttr(targetNamespace, nl.Uint32Attr(uint32(id))))
		messages, err := netif.Complete(func() ([][]byte, error) { return r.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWADDR) })
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			attributes, err := nl.ParseRouteAttr(m[unix.SizeofIfAddrmsg:])
			if err != nil {
				return nil, err
			}
			for _, x := range attributes {
				if a, ok := netip.AddrFromSlice(x.Value); ok && (x.Attr.Type == unix.IFA_LOCAL || x.Attr.Type == unix.IFA_ADDRESS) && a.IsGlobalUnicast() {
					all = append(all, a)
				}
			}
		}
	}
	return all, nil
}
