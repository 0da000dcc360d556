// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/sys/unix"
)

// BatchError is the kernel's refusal of a transaction, and describes the first operation
// that was refused. No part of the transaction has taken effect.
type BatchError struct {
	Errno   unix.Errno
	Message string // the kernel's message, or ""
	Op      string // "add element", "delete chain" ...; "" if the whole batch was refused
	Table   Table
	Object  string // the set, chain or rule's chain
	Key     []byte // the element's key, if the error is about an element
	Expr    string // the name of the rule's refused expression, such as "masq", or ""
}

// Error describes the refusal in one line.
func (e *BatchError) Error() string {
	what, why := "the batch", e.Errno.Error()
	if e.Op != "" {
		what = strings.TrimSpace(fmt.Sprintf("to %s in table %s %s %s", e.Op, e.Table.Family, e.Table.Name, e.Object))
		if e.Key != nil {
			what += fmt.Sprintf(" key %x", e.Key)
		}
		if e.Expr != "" {
			what += " with expression " + e.Expr
		}
	}
	if e.Message != "" {
		why += " (" + e.Message + ")"
	}
	return "nf_tables refused " + what + ": " + why
}

// Unwrap returns the errno.
func (e *BatchError) Unwrap() error { return e.Errno }

// Lacks reports whether the refusal can mean that the kernel lacks a feature: not for lack of permission or memory.
func (e *BatchError) Lacks() bool {
	return !slices.Contains([]unix.Errno{unix.EPERM, unix.ENOMEM, unix.ENOBUFS, unix.ENFILE}, e.Errno)
}

// IsUnsupported reports whether an error means that the kernel lacks a subsystem of netfilter, or support for a family.
func IsUnsupported(err error) bool {
	lacks := []unix.Errno{unix.EINVAL, unix.EOPNOTSUPP, unix.EPROTONOSUPPORT, unix.EAFNOSUPPORT}
	return slices.ContainsFunc(lacks, func(errno unix.Errno) bool { return errors.Is(err, errno) })
}

// kernelError is a parsed NLMSG_ERROR.
type kernelError struct {
	errno   unix.Errno
	message string
	offset  int // of the refused attribute in the message; 0 if unknown
}

func parseError(h sock.Header, payload []byte) kernelError {
	var e kernelError
	if len(payload) < 4 {
		return e
	}
	e.errno = unix.Errno(-int32(binary.NativeEndian.Uint32(payload)))
	const fixed = 4 + nlmsgHeaderLen // the error and the request's header, without the rest because of NETLINK_CAP_ACK
	const nlmsgAckTLVs = 0x200       // an acknowledgement that carries attributes (NLM_F_ACK_TLVS)
	if h.Flags&nlmsgAckTLVs != 0 && len(payload) > fixed {
		e.message = cString(Attr(payload[fixed:], unix.NLMSGERR_ATTR_MSG))
		if v := Attr(payload[fixed:], unix.NLMSGERR_ATTR_OFFS); len(v) >= 4 {
			e.offset = int(binary.NativeEndian.Uint32(v))
		}
	}
	return e
}

// failure describes an error about message number i of the batches.
func failure(batches []*Batch, i int, e kernelError) *BatchError {
	f := &BatchError{Errno: e.errno, Message: e.message}
	for len(batches) > 0 && i >= len(batches[0].messages) {
		i -= len(batches[0].messages)
		batches = batches[1:]
	}
	if i < 0 || len(batches) == 0 {
		return f // about the begin or end message of the transaction
	}
	b := batches[0]
	msg := b.buf[b.messages[i]:]
	msg = msg[:binary.NativeEndian.Uint32(msg)]
	typ := binary.NativeEndian.Uint16(msg[4:]) & 0xff
	f.Op = operations[typ]
	f.Table.Family = Family(msg[nlmsgHeaderLen])
	body := msg[nlmsgHeaderLen+nfgenHeaderLen:]
	f.Table.Name = cString(Attr(body, tableName))
	switch typ {
	case unix.NFT_MSG_NEWTABLE, unix.NFT_MSG_DELTABLE:
		return f
	case unix.NFT_MSG_NEWSETELEM, unix.NFT_MSG_DELSETELEM:
		element := attrAt(msg, Attr(body, unix.NFTA_SET_ELEM_LIST_ELEMENTS), e.offset)
		f.Key = bytes.Clone(Attr(Attr(element, unix.NFTA_SET_ELEM_KEY), unix.NFTA_DATA_VALUE))
	case unix.NFT_MSG_NEWRULE:
		if e.offset == 0 {
			break
		}
		f.Expr = cString(Attr(attrAt(msg, Attr(body, unix.NFTA_RULE_EXPRESSIONS), e.offset), unix.NFTA_EXPR_NAME))
	}
	f.Object = cString(Attr(body, objectName(typ)))
	return f
}

// attrAt returns that attribute of a list that contains the offset in the message. If the
// offset is unknown, it returns the only attribute, or nil if there are several.
func attrAt(msg, list []byte, offset int) (found []byte) {
	count := 0
	for _, payload := range Attributes(list) {
		// The slices share one array, so the difference in capacity is the position.
		at := cap(msg) - cap(payload)
		if offset == 0 || offset >= at-attrHeaderLen && offset < at+len(payload) {
			found = payload
			count++
		}
	}
	if count != 1 {
		return nil
	}
	return found
}

var operations = map[uint16]string{
	unix.NFT_MSG_NEWTABLE:   "add table",
	unix.NFT_MSG_DELTABLE:   "delete table",
	unix.NFT_MSG_NEWCHAIN:   "add chain",
	unix.NFT_MSG_DELCHAIN:   "delete chain",
	unix.NFT_MSG_NEWRULE:    "add rule",
	unix.NFT_MSG_DELRULE:    "delete rule",
	unix.NFT_MSG_NEWSET:     "add set",
	unix.NFT_MSG_NEWSETELEM: "add element",
	unix.NFT_MSG_DELSETELEM: "delete element",
	unix.NFT_MSG_NEWOBJ:     "add object",
	msgNewFlowtable:         "add flowtable",
	msgDelFlowtable:         "delete flowtable",
}
