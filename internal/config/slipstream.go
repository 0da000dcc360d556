// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"
	"slices"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/utils/ptr"
)

// SlipstreamKind is the kind of a document with Slipstream's own settings.
const SlipstreamKind = "SlipstreamConfiguration"

// GroupVersion is the API group and version of a document with Slipstream's own
// settings.
var GroupVersion = schema.GroupVersion{Group: "slipstream.config", Version: "v1alpha1"}

// SlipstreamConfiguration has the settings that kube-proxy's configuration has no fields
// for. It is decoded strictly: unknown fields are errors.
type SlipstreamConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	// Manifests is a directory of manifests to take objects from, in place of
	// the Kubernetes API.
	Manifests string `json:"manifests"`

	// MinSyncPeriod is the least time between two updates of the kernel. It
	// overrides minSyncPeriod of kube-proxy's configuration.
	MinSyncPeriod *metav1.Duration `json:"minSyncPeriod,omitempty"`

	// CheckPeriod is how often to check whether the ruleset was modified
	// externally. Unset: [DefaultCheckPeriod].
	CheckPeriod *metav1.Duration `json:"checkPeriod,omitempty"`

	// VerifyPeriod is how often to compare the kernel's content, chains and rules with
	// the desired state, in the background. 0, the default, is never.
	VerifyPeriod *metav1.Duration `json:"verifyPeriod,omitempty"`

	// Scheduler is how endpoints are chosen where the annotation slipstream.io/scheduler of a
	// Service does not say; see [Config.Balancing].
	Scheduler string `json:"scheduler,omitempty"`

	// MaglevTableSize is the largest size of a Maglev table, one of desired.TableSizes.
	// Unset: the last one.
	MaglevTableSize int `json:"maglevTableSize,omitempty"`

	// ServiceAnnotations says in which Namespaces annotations of Services, EndpointSlices and pods count:
	// "all" (default), "none", or a selector of their labels. See [Config.Annotated].
	ServiceAnnotations string `json:"serviceAnnotations,omitempty"`

	// ExternalIPRanges are the ranges in which spec.externalIPs of Services count. Unset: all do.
	ExternalIPRanges []string `json:"externalIPRanges,omitempty"`

	// NamespaceSlots and NamespaceElements are what the Services of a namespace may have. Unset:
	// desired.MaxSlots and desired.MaxElements.
	NamespaceSlots    int `json:"namespaceSlots,omitempty"`
	NamespaceElements int `json:"namespaceElements,omitempty"`

	// ResetDeletedNodes resets TCP connections to endpoints of Nodes that were deleted,
	// instead of letting them time out. All Nodes are watched for it.
	ResetDeletedNodes bool `json:"resetDeletedNodes,omitempty"`

	// StatusSocket is the path of the Unix socket on which the running proxy describes itself
	// to root (slipstream status, services and explain). Unset: [DefaultStatusSocket].
	StatusSocket string `json:"statusSocket,omitempty"`

	// UIBindAddress is the IP address and the port of a web page that shows the same as StatusSocket
	// to all that can connect. Unset: there is none.
	UIBindAddress string `json:"uiBindAddress,omitempty"`

	// TLSCertFile and TLSPrivateKeyFile are a certificate and its key, for TLS on metricsBindAddress and
	// uiBindAddress. They are read again when they change. Unset: plain HTTP.
	TLSCertFile       string `json:"tlsCertFile,omitempty"`
	TLSPrivateKeyFile string `json:"tlsPrivateKeyFile,omitempty"`

	// HTTPAuthorization says who may read what is served there: "none", all that can connect (the default), or
	// "api", those to whose token the API server allows it (TokenReview, SubjectAccessReview of the path).
	HTTPAuthorization string `json:"httpAuthorization,omitempty"`

	// ServiceMetrics counts connections and bytes by Service for the metrics
	// slipstream_service_*. It costs an event of the kernel for each connection that ends.
	ServiceMetrics bool `json:"serviceMetrics,omitempty"`

	// SocketLoadBalancing says which connections of local clients are connected straight to an
	// endpoint: "off" (default), or "tcp". See package socket.
	SocketLoadBalancing string `json:"socketLoadBalancing,omitempty"`

	// SocketExcludePods is a CEL expression that selects pods of this node whose connections
	// SocketLoadBalancing leaves alone. With it, only pods that the API server has reported are
	// connected so.
	SocketExcludePods string `json:"socketExcludePods,omitempty"`

	// FastPath configures the fast path.
	FastPath FastPathConfiguration `json:"fastPath"`
}

// FastPathConfiguration configures the fast path: established connections skip most of
// the network stack (KEP-4963). See package fastpath.
type FastPathConfiguration struct {
	// OffloadPacketThreshold is the number of packets, of both directions
	// together, after which a connection takes the fast path. 0 turns the fast path off. Unset: [DefaultOffloadPacketThreshold].
	OffloadPacketThreshold *int64 `json:"offloadPacketThreshold,omitempty"`

	// Engine is what forwards their packets: "flowtable" (default), "ebpf", or "auto".
	Engine string `json:"engine,omitempty"`

	// Scope is which connections may take it: "services" (default) or "all".
	Scope string `json:"scope,omitempty"`

	// Bypass is which rules of other programs they may bypass: "none" (default), beside those that only count and those that
	// judge all packets of a connection alike, or "all".
	Bypass string `json:"bypass,omitempty"`

	// Interfaces is a CEL expression that selects the interfaces between which
	// connections may take it. Unset: all that are up, except loopback,
	// WireGuard, and ports of bridges and bonds.
	Interfaces string `json:"interfaces,omitempty"`

	// HardwareOffload is whether to hand connections to network hardware:
	// "auto" (default), "on" or "off".
	HardwareOffload Switch `json:"hardwareOffload,omitempty"`

	// ExcludeAddresses are addresses and ranges of clients and backends whose
	// connections do not take it.
	ExcludeAddresses []string `json:"excludeAddresses,omitempty"`

	// ExcludePods is a CEL expression that selects pods of this node whose connections do
	// not take it, beside those with the annotation slipstream.io/fast-path: "off".
	ExcludePods string `json:"excludePods,omitempty"`

	// ExcludeMarks are packet marks and connection marks, as value or value/mask,
	// such as "0x10/0xf0", with which connections do not take it.
	ExcludeMarks []string `json:"excludeMarks,omitempty"`

	// ExcludeDSCP are values of the DSCP field, 0 to 63, with which connections do
	// not take it.
	ExcludeDSCP []int `json:"excludeDSCP,omitempty"`
}

// Switch is "auto", "on" or "off". The latter two are booleans in YAML unless
// they are quoted, so booleans are accepted too.
type Switch string

// UnmarshalJSON reads a string or a boolean.
func (s *Switch) UnmarshalJSON(data []byte) error {
	var on bool
	if json.Unmarshal(data, &on) == nil && string(data) != "null" {
		*s = "off"
		if on {
			*s = "on"
		}
		return nil
	}
	return json.Unmarshal(data, (*string)(s))
}

// DeepCopyObject returns a deep copy.
func (c *SlipstreamConfiguration) DeepCopyObject() runtime.Object {
	out := *c
	out.MinSyncPeriod = copied(c.MinSyncPeriod)
	out.CheckPeriod = copied(c.CheckPeriod)
	out.VerifyPeriod = copied(c.VerifyPeriod)
	out.FastPath.OffloadPacketThreshold = copied(c.FastPath.OffloadPacketThreshold)
	out.FastPath.ExcludeAddresses = slices.Clone(c.FastPath.ExcludeAddresses)
	out.FastPath.ExcludeMarks = slices.Clone(c.FastPath.ExcludeMarks)
	out.FastPath.ExcludeDSCP = slices.Clone(c.FastPath.ExcludeDSCP)
	return &out
}

func copied[T any](p *T) *T {
	if p == nil {
		return nil
	}
	return ptr.To(*p)
}
