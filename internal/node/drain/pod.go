// SPDX-License-Identifier: Apache-2.0

package drain

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"syscall"

	"github.com/slipstream-proxy/slipstream/internal/node/netif"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// namespace returns the inode of the network namespace of a socket, and the number by which interfaces here name it. The number
// is negative if no interface does: then the namespace can be one that a process in a pod has made for itself, where it can
// have any address. With ipvlan, and in this namespace, it is so, too.
func namespace(fd int) (inode uint64, id int, err error) {
	domain, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_DOMAIN)
	if err != nil {
		return 0, 0, fmt.Errorf("the passed file: %w", err)
	}
	if protocol, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_PROTOCOL); err != nil || domain != unix.AF_NETLINK || protocol != unix.NETLINK_ROUTE {
		return 0, 0, errors.New("the passed file is not an rtnetlink socket")
	}
	file, err := unix.IoctlRetInt(fd, unix.SIOCGSKNS)
	if err != nil {
		return 0, 0, fmt.Errorf("network namespace of the passed socket: %w", err)
	}
	defer unix.Close(file)
	var of, own unix.Stat_t
	if err := errors.Join(unix.Fstat(file, &of), unix.Stat("/proc/thread-self/ns/net", &own)); err != nil {
		return 0, 0, err
	}
	if of.Ino == own.Ino {
		return of.Ino, -1, nil
	}
	id, err = netlink.GetNetNsIdByFd(file)
	return of.Ino, id, err
}

// isLinked reports whether an interface here has its peer, as veth has, in the network namespace with a number.
func isLinked(id int) (bool, error) {
	links, err := netif.Complete(netlink.LinkList)
	return slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().NetNsID == id }), err
}

// mostMessages bounds how much is read from a pod's socket, as the pod can fill it.
const mostMessages = 1000

// targetNamespace is IFA_TARGET_NETNSID. The kernel puts it before the addresses.
const targetNamespace = 10

// addresses returns the addresses of a socket's network namespace. Other processes have the socket as well. They can
// have the kernel answer on it what they ask, but not have it say something untrue: messages of other senders, and about other
// namespaces, are errors.
func addresses(fd int) (all []netip.Addr, err error) {
	request := nl.NewNetlinkRequest(unix.RTM_GETADDR, unix.NLM_F_DUMP)
	request.AddData(nl.NewIfAddrmsg(unix.AF_UNSPEC))
	kernel := &unix.SockaddrNetlink{Family: unix.AF_NETLINK}
	if err := unix.Sendto(fd, request.Serialize(), unix.MSG_DONTWAIT, kernel); err != nil {
		return nil, err
	}
	buffer := make([]byte, 64<<10)
	for range mostMessages {
		n, from, err := unix.Recvfrom(fd, buffer, unix.MSG_DONTWAIT)
		if err != nil {
			return nil, err
		}
		if sender, ok := from.(*unix.SockaddrNetlink); !ok || sender.Pid != 0 {
			return nil, errors.New("a message that is not the kernel's")
		}
		messages, err := syscall.ParseNetlinkMessage(buffer[:n])
		if err != nil {
			return nil, err
		}
		for _, m := range messages {
			switch {
			case m.Header.Seq != request.Seq:
			case m.Header.Type == unix.NLMSG_DONE:
				return all, nil
			case m.Header.Type != unix.RTM_NEWADDR || len(m.Data) < unix.SizeofIfAddrmsg:
				return nil, os.ErrInvalid
			default:
				a, err := address(m.Data[unix.SizeofIfAddrmsg:])
				if err != nil {
					return nil, err
				}
				if a.IsValid() && !a.IsLoopback() && !a.IsLinkLocalUnicast() {
					all = append(all, a)
				}
			}
		}
	}
	return nil, errors.New("too many messages")
}

// address returns the address that a message's attributes give: IFA_LOCAL, or IFA_ADDRESS where there is none.
func address(attributes []byte) (a netip.Addr, err error) {
	all, err := nl.ParseRouteAttr(attributes)
	if err != nil {
		return a, err
	}
	for _, x := range all {
		switch x.Attr.Type {
		case targetNamespace:
			return a, errors.New("addresses of another network namespace")
		case unix.IFA_LOCAL:
			a, _ = netip.AddrFromSlice(x.Value)
		case unix.IFA_ADDRESS:
			if !a.IsValid() {
				a, _ = netip.AddrFromSlice(x.Value)
			}
		}
	}
	return a, nil
}
