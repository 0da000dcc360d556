// SPDX-License-Identifier: Apache-2.0

package config

import (
	"encoding/json"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
)

// SlipstreamKind is the kind of a document with Slipstream's own settings.
const SlipstreamKind = "SlipstreamConfiguration"

// GroupVersion is the API group and version of a document with Slipstream's own settings. Documents of the former
// version, which has the same fields, are read too.
var (
	GroupVersion  = schema.GroupVersion{Group: "slipstream.config", Version: "v1beta1"}
	formerVersion = schema.GroupVersion{Group: GroupVersion.Group, Version: "v1alpha1"}
)

// SlipstreamConfiguration has the settings that kube-proxy's configuration has no fields
// for. It is decoded strictly: unknown fields are errors. docs/configuration.md describes the
// values and their defaults; a comment here says what the code adds to that.
type SlipstreamConfiguration struct {
	metav1.TypeMeta `json:",inline"`

	Manifests     string           `json:"manifests"`
	MinSyncPeriod *metav1.Duration `json:"minSyncPeriod,omitempty"` // overrides minSyncPeriod of kube-proxy's configuration
	CheckPeriod   *metav1.Duration `json:"checkPeriod,omitempty"`
	VerifyPeriod  *metav1.Duration `json:"verifyPeriod,omitempty"` // 0 is never

	Scheduler          string   `json:"scheduler,omitempty"`          // see [Config.Balancing]
	MaglevTableSize    int      `json:"maglevTableSize,omitempty"`    // one of desired.TableSizes; 0: the last one
	ServiceAnnotations string   `json:"serviceAnnotations,omitempty"` // see [Config.Annotated]
	ExternalIPRanges   []string `json:"externalIPRanges,omitempty"`
	NamespaceSlots     int      `json:"namespaceSlots,omitempty"`    // 0: desired.MaxSlots
	NamespaceElements  int      `json:"namespaceElements,omitempty"` // 0: desired.MaxElements
	ResetDeletedNodes  bool     `json:"resetDeletedNodes,omitempty"` // all Nodes are watched for it

	StatusSocket      string `json:"statusSocket,omitempty"`
	PodSocket         string `json:"podSocket,omitempty"` // see package drain
	UIBindAddress     string `json:"uiBindAddress,omitempty"`
	TLSCertFile       string `json:"tlsCertFile,omitempty"` // both files are read again when they change
	TLSPrivateKeyFile string `json:"tlsPrivateKeyFile,omitempty"`
	HTTPAuthorization string `json:"httpAuthorization,omitempty"` // "none" or [AuthorizedByAPI]
	ServiceMetrics    bool   `json:"serviceMetrics,omitempty"`

	SocketLoadBalancing string `json:"socketLoadBalancing,omitempty"` // see package socket
	SocketExcludePods   string `json:"socketExcludePods,omitempty"`   // if set, pods are served only once the API server has reported them

	FastPath FastPathConfiguration `json:"fastPath"`
}

// FastPathConfiguration configures the fast path: established connections skip most of
// the network stack (KEP-4963). See package fastpath.
type FastPathConfiguration struct {
	OffloadPacketThreshold *int64 `json:"offloadPacketThreshold,omitempty"` // 0 turns the fast path off
	Engine                 string `json:"engine,omitempty"`
	Scope                  string `json:"scope,omitempty"`
	Bypass                 string `json:"bypass,omitempty"`
	Interfaces             string `json:"interfaces,omitempty"` // a CEL expression
	HardwareOffload        Switch `json:"hardwareOffload,omitempty"`
	GRO                    bool   `json:"gro,omitempty"` // at the node's ends of pods' veths

	ExcludeAddresses []string `json:"excludeAddresses,omitempty"` // of clients and backends
	ExcludePods      string   `json:"excludePods,omitempty"`      // a CEL expression; beside pods with the annotation slipstream.io/fast-path: "off"
	ExcludeMarks     []string `json:"excludeMarks,omitempty"`     // of packets and connections, as value or value/mask
	ExcludeDSCP      []int    `json:"excludeDSCP,omitempty"`      // from 0 to 63
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

// DeepCopyObject is for the decoder, which copies nothing.
func (c *SlipstreamConfiguration) DeepCopyObject() runtime.Object { return c }
