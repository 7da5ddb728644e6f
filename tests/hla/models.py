"""Object models for tests."""

SPATIAL = b"""<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
<objects><objectClass><name>HLAobjectRoot</name><objectClass><name>Tank</name>
 <attribute><name>Spatial</name><dataType>SpatialStruct</dataType></attribute>
 <attribute><name>Route</name><dataType>Route</dataType></attribute>
 <attribute><name>Marking</name><dataType>Marking</dataType></attribute>
</objectClass></objectClass></objects>
<interactions><interactionClass><name>HLAinteractionRoot</name><interactionClass><name>Order</name>
 <parameter><name>Spatial</name><dataType>SpatialStruct</dataType></parameter>
 <parameter><name>Route</name><dataType>Route</dataType></parameter>
 <parameter><name>Marking</name><dataType>Marking</dataType></parameter>
</interactionClass></interactionClass></interactions>
<dataTypes>
 <basicDataRepresentations><basicData><name>RPRunsignedInteger8BE</name></basicData></basicDataRepresentations>
 <simpleDataTypes>
  <simpleData><name>WorldLocationOffset</name><representation>HLAfloat64BE</representation><units>meter</units></simpleData>
  <simpleData><name>Angle</name><representation>HLAfloat32BE</representation><units>radian</units></simpleData>
  <simpleData><name>Octet</name><representation>HLAoctet</representation></simpleData>
 </simpleDataTypes>
 <enumeratedDataTypes>
  <enumeratedData><name>RPRboolean</name><representation>HLAoctet</representation>
   <enumerator><name>False</name><value>0</value></enumerator><enumerator><name>True</name><value>1</value></enumerator>
  </enumeratedData>
  <enumeratedData><name>Algorithm8</name><representation>RPRunsignedInteger8BE</representation>
   <enumerator><name>Other</name><value>0</value></enumerator><enumerator><name>Static</name><value>1</value></enumerator>
   <enumerator><name>FPW</name><value>2</value></enumerator><enumerator><name>RPW</name><value>3</value></enumerator>
   <enumerator><name>RVW</name><value>4</value></enumerator>
  </enumeratedData>
 </enumeratedDataTypes>
 <arrayDataTypes>
  <arrayData><name>Marking</name><dataType>Octet</dataType><cardinality>3</cardinality><encoding>HLAfixedArray</encoding></arrayData>
  <arrayData><name>Route</name><dataType>Location</dataType><cardinality>Dynamic</cardinality><encoding>HLAvariableArray</encoding></arrayData>
  <arrayData><name>Matrix</name><dataType>Angle</dataType><cardinality>2,3</cardinality><encoding>HLAfixedArray</encoding></arrayData>
  <arrayData><name>Odd</name><dataType>Octet</dataType><cardinality>3</cardinality><encoding>acmeArray</encoding></arrayData>
 </arrayDataTypes>
 <fixedRecordDataTypes>
  <fixedRecordData><name>Location</name><encoding>HLAfixedRecord</encoding>
   <field><name>X</name><dataType>WorldLocationOffset</dataType></field><field><name>Y</name><dataType>WorldLocationOffset</dataType></field>
  </fixedRecordData>
  <fixedRecordData><name>SpatialStatic</name><encoding>HLAfixedRecord</encoding>
   <field><name>WorldLocation</name><dataType>Location</dataType></field><field><name>IsFrozen</name><dataType>RPRboolean</dataType></field>
   <field><name>Heading</name><dataType>Angle</dataType></field>
  </fixedRecordData>
  <fixedRecordData><name>Strange</name><encoding>HLAfixedRecord</encoding><field><name>odd</name><dataType>Odd</dataType></field></fixedRecordData>
 </fixedRecordDataTypes>
 <variantRecordDataTypes><variantRecordData><name>SpatialStruct</name><discriminant>DeadReckoningAlgorithm</discriminant>
  <dataType>Algorithm8</dataType>
  <alternative><enumerator>Static</enumerator><name>SpatialStatic</name><dataType>SpatialStatic</dataType></alternative>
  <alternative><enumerator>[FPW .. RPW], RVW</enumerator><name>Heading</name><dataType>Angle</dataType></alternative>
  <alternative><enumerator>HLAother</enumerator><name>None</name><dataType>NA</dataType></alternative>
  <encoding>HLAvariantRecord</encoding></variantRecordData></variantRecordDataTypes>
</dataTypes></objectModel>"""
"""Types as the RPR FOM has them for where things are."""

SHIPS = b"""<objectModel><objects><objectClass><name>HLAobjectRoot</name><objectClass><name>Ship</name>
<attribute><name>draught</name><dataType>Metres</dataType><dimensions><dimension>Sea</dimension></dimensions></attribute>
</objectClass></objectClass></objects>
<dimensions><dimension><name>Sea</name><upperBound>100</upperBound></dimension></dimensions>
<dataTypes><simpleDataTypes><simpleData><name>Metres</name><representation>HLAfloat64BE</representation></simpleData>
</simpleDataTypes></dataTypes></objectModel>"""
"""A class with a data type and a dimension, to be added to another model."""

_FIELD_TYPES = (
    "HLAoctet", "HLAbyte", "HLAinteger16BE", "HLAinteger32LE", "HLAinteger64BE", "HLAfloat32LE", "HLAfloat64BE",
    "HLAboolean", "HLAASCIIchar", "HLAunicodeChar", "HLAASCIIstring", "HLAunicodeString", "HLAopaqueData", "Kind",
    "Code", "Octets", "Names", "Grid",
)  # fmt: skip
KIND_TYPES = [*_FIELD_TYPES, "Photo", "Label", "Many", "Record", "Records", "Choice", "Option", "Unsaid", ""]
"""A data type of each kind; the encoding of two is not known."""
_MEMBERS = "".join(
    f"<{{0}}><name>m{at}</name><dataType>{each}</dataType></{{0}}>" for at, each in enumerate(KIND_TYPES)
)
_FIELDS = "".join(f"<field><name>of {each}</name><dataType>{each}</dataType></field>" for each in _FIELD_TYPES)
_ARRAYS = {
    "Code": ("HLAASCIIchar", "4", "HLAfixedArray"), "Octets": ("HLAoctet", "3", "HLAfixedArray"),
    "Names": ("HLAunicodeString", "Dynamic", "HLAvariableArray"), "Grid": ("HLAinteger16BE", "2,3", "HLAfixedArray"),
    "Photo": ("HLAbyte", "Dynamic", "HLAvariableArray"), "Label": ("HLAunicodeChar", "8", "HLAfixedArray"),
    "Unsaid": ("HLAoctet", "3", "acmeArray"),
    "Many": ("HLAfloat32LE", "Dynamic", "RPRlengthlessArray"), "Records": ("Record", "Dynamic", "HLAvariableArray"),
}  # fmt: skip
_ARRAY_TYPES = "".join(
    f"<arrayData><name>{name}</name><dataType>{of}</dataType><cardinality>{count}</cardinality>"
    f"<encoding>{encoding}</encoding></arrayData>"
    for name, (of, count, encoding) in _ARRAYS.items()
)
_CHOICES = "".join(
    f"""<variantRecordData><name>{name}</name><discriminant>kind</discriminant><dataType>Kind</dataType>
 <alternative><enumerator>One</enumerator><name>record</name><dataType>Record</dataType></alternative>
 <alternative><enumerator>Two</enumerator><name>names</name><dataType>Names</dataType></alternative>
 <alternative><enumerator>Below</enumerator><name>none</name><dataType>NA</dataType></alternative>
 <alternative><enumerator>HLAother</enumerator><name>other</name><dataType>HLAfloat64BE</dataType></alternative>
 <encoding>{encoding}</encoding></variantRecordData>"""
    for name, encoding in (("Choice", "HLAvariantRecord"), ("Option", "HLAextendableVariantRecord"))
)
KINDS = f"""<objectModel xmlns="http://standards.ieee.org/IEEE1516-2010">
<objects><objectClass><name>HLAobjectRoot</name><objectClass><name>Thing</name>{_MEMBERS.format("attribute")}
</objectClass></objectClass></objects>
<interactions><interactionClass><name>HLAinteractionRoot</name><interactionClass><name>Order</name>{_MEMBERS.format("parameter")}
</interactionClass></interactionClass></interactions>
<dataTypes><enumeratedDataTypes><enumeratedData><name>Kind</name><representation>HLAinteger16BE</representation>
<enumerator><name>One</name><value>1</value></enumerator><enumerator><name>Two</name><value>2</value></enumerator>
<enumerator><name>Below</name><value>-1</value></enumerator></enumeratedData></enumeratedDataTypes>
<arrayDataTypes>{_ARRAY_TYPES}</arrayDataTypes>
<fixedRecordDataTypes><fixedRecordData><name>Record</name><encoding>HLAfixedRecord</encoding>{_FIELDS}</fixedRecordData>
</fixedRecordDataTypes><variantRecordDataTypes>{_CHOICES}</variantRecordDataTypes></dataTypes></objectModel>""".encode()
"""A class and an interaction with a member `m0`, `m1` ... of each of KIND_TYPES."""
